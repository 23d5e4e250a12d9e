"""Why did backward fail, do nothing, or make what is not finite?"""
