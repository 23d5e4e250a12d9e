"""Which direction does a vector point in?"""


def normalized(vectors):
    length = vectors.norm(dim=-1, keepdim=True)
    unit = vectors / length  #: 1 non_finite_gradient_zero_norm
    return unit
