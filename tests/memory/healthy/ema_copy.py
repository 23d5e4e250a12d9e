"""A teacher that follows its student: one copy, changed in place."""

import copy

import torch
from torch import nn


class Teacher:
    def __init__(self, student, decay=0.9):
        self.model, self.decay = copy.deepcopy(student).requires_grad_(False), decay

    @torch.no_grad()
    def follow(self, student):
        for mine, its in zip(self.model.parameters(), student.parameters(), strict=True):
            mine.lerp_(its, 1 - self.decay)


student = nn.Sequential(nn.Linear(27, 38), nn.Tanh(), nn.Linear(38, 5))
teacher = Teacher(student)
optimizer = torch.optim.AdamW(student.parameters())


def step(i):
    x = torch.randn(9, 27)
    optimizer.zero_grad()
    (student(x) - teacher.model(x)).square().mean().backward()
    optimizer.step()
    teacher.follow(student)
