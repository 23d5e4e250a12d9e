"""How are the first layers run?"""

import torch


def first_stages(layers, x):
    with torch.no_grad():
        for layer in layers:
            x = torch.relu(layer(x))  #: 1 detached_parameter_helper_no_grad
    return x
