"""Which gradients flow at a value, a parameter or a call?"""
