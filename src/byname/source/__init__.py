"""Which file, line and statement does a code object stand for?"""
