"""How is a tensor perturbed?"""

import torch


def perturb(tensor, strength):
    return tensor.add_(strength * torch.ones_like(tensor))  #: 2 modified_in_place_helper_noise
