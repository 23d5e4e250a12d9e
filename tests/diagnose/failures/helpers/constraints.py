"""How are weights kept within their bounds?"""

import torch.nn.functional as F


def keep_positive(weights):
    for weight in weights:
        F.relu_(weight)  #: 1 leaf_in_place_helper_clamp
