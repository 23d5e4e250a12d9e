"""Which calls does a selector mean?"""
