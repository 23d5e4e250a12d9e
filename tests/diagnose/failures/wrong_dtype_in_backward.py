# cause: wrong-dtype
# culprits: wanted
# culprits: q
# kind: error
# mended 2: loss = criterion(q, wanted.float())
import numpy as np
import torch
from torch import nn

model, criterion = nn.Linear(4, 1), nn.HuberLoss()
wanted = torch.from_numpy(np.zeros((3, 1)))  #: 1
q = model(torch.randn(3, 4))
loss = criterion(q, wanted)  #: 2
loss.backward()  #: 3
