"""Children: the objects that an object refers to, and the source text of one step to each of them."""
