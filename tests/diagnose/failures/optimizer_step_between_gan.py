# cause: optimizer-step-between
# culprits: self.critic[2].weight
# kind: error
# mended 2: pass
import torch
from torch import nn


class Gan:
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3))
        self.critic = nn.Sequential(nn.Linear(3, 6), nn.LeakyReLU(), nn.Linear(6, 1))
        self.optimizers = {
            "generator": torch.optim.SGD(self.generator.parameters(), lr=0.1),
            "critic": torch.optim.SGD(self.critic.parameters(), lr=0.1),
        }

    def step(self, real):
        fake = self.generator(torch.randn(len(real), 2))
        scores = self.critic(fake)  #: 1
        critic_loss = scores.mean() - self.critic(real).mean()
        self.optimizers["critic"].zero_grad()
        critic_loss.backward(retain_graph=True)
        self.optimizers["critic"].step()  #: 2

        generator_loss = -scores.mean()
        self.optimizers["generator"].zero_grad()
        generator_loss.backward()  #: 3
        self.optimizers["generator"].step()


torch.manual_seed(0)
gan = Gan()
for real in torch.randn(2, 4, 3):
    gan.step(real)
