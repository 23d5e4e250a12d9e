"""What is stored of a value: plain copies, whether it changed, and what is made of it before."""
