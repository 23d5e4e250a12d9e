"""What does an object hold, and how does the program write that?"""
