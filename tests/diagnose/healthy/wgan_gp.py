"""A Wasserstein GAN with gradient penalty: a gradient with respect to the input is part of the loss."""

import torch
from torch import nn

torch.manual_seed(2)
LAMBDA = 10.0


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = critic(mixed)
    (gradients,) = torch.autograd.grad(
        outputs=scores,
        inputs=mixed,
        grad_outputs=torch.ones_like(scores),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


class WGAN:
    def __init__(self):
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        self.opt_g = torch.optim.RMSprop(self.generator.parameters(), lr=1e-3)
        self.opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=1e-3)

    def critic_step(self, real):
        with torch.no_grad():
            fake = self.generator(torch.randn(real.size(0), 4))
        self.opt_c.zero_grad()
        loss = self.critic(fake).mean() - self.critic(real).mean()
        loss = loss + LAMBDA * gradient_penalty(self.critic, real, fake)
        loss.backward()
        self.opt_c.step()

    def generator_step(self, count):
        for p in self.critic.parameters():
            p.requires_grad_(False)
        self.opt_g.zero_grad()
        (-self.critic(self.generator(torch.randn(count, 4))).mean()).backward()
        self.opt_g.step()
        for p in self.critic.parameters():
            p.requires_grad_(True)


gan = WGAN()
for step in range(6):
    gan.critic_step(torch.randn(8, 2))
    if step % 2 == 1:
        gan.generator_step(8)

FINAL = [*gan.generator.parameters(), *gan.critic.parameters()]
