"""Which temperatures does a calibration start from?"""

import torch


def make_temperatures(count):
    return [torch.ones((), requires_grad=True) for _ in range(count)]  #: 1 free_leaf_list_of_temperatures
