"""Mean teacher: a deep copy follows the student by a moving average and is never given a gradient."""

import copy

import torch
from torch import nn

torch.manual_seed(17)


class MeanTeacher:
    def __init__(self, student, momentum=0.9):
        self.student = student
        self.teacher = copy.deepcopy(student)
        self.momentum = momentum
        for p in self.teacher.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self):
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.mul_(self.momentum).add_(fast, alpha=1 - self.momentum)
        for slow, fast in zip(self.teacher.buffers(), self.student.buffers(), strict=True):
            slow.copy_(fast)

    def loss(self, x, y, unlabelled):
        supervised = nn.functional.cross_entropy(self.student(x), y)
        noisy = unlabelled + 0.1 * torch.randn_like(unlabelled)
        consistency = nn.functional.mse_loss(self.student(noisy).softmax(1), self.teacher(unlabelled).softmax(1))
        return supervised + consistency


pair = MeanTeacher(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.SGD(pair.student.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
for step in range(5):
    loss = pair.loss(torch.randn(6, 4), torch.randint(3, (6,)), torch.randn(10, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pair.update()

FINAL = [*pair.student.parameters(), *pair.student.buffers(), *pair.teacher.parameters(), *pair.teacher.buffers()]
