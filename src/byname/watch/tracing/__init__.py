"""What does a model call while an example runs?"""
