"""How is one step of training made?"""


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.losses = []

    def step(self, *inputs):
        self.optimizer.zero_grad()
        loss = self.model(*inputs)
        loss.backward()  #: 2 3 backward_twice_cached_table
        self.optimizer.step()
        self.losses.append(loss.item())
