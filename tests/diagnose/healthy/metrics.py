"""Running totals of loss and accuracy, kept as numbers and as detached tensors, never as history."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(34)


class Rings(Dataset):
    def __init__(self, count):
        self.points = torch.randn(count, 2)
        self.labels = (self.points.norm(dim=1) > 1.2).long()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def average(self):
        return self.sum / max(self.count, 1)


def run_epoch(model, loader, criterion, optimizer=None):
    meter, correct, smooth = AverageMeter(), 0, None
    confusion = torch.zeros(2, 2, dtype=torch.long)
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in loader:
            output = model(x)
            loss = criterion(output, y)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            meter.update(loss.item(), len(y))
            smooth = loss.detach() if smooth is None else 0.9 * smooth + 0.1 * loss.detach()
            with torch.no_grad():
                predicted = output.argmax(dim=1)
                correct += predicted.eq(y).sum().item()
                confusion.index_put_((y, predicted), torch.ones_like(y), accumulate=True)
    return meter.average, correct / len(loader.dataset), smooth, confusion


model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
history = []
for epoch in range(3):
    train = run_epoch(model, DataLoader(Rings(24), batch_size=8, shuffle=True), criterion, optimizer)
    valid = run_epoch(model, DataLoader(Rings(12), batch_size=6), criterion)
    history.append([train[0], train[1], valid[0], valid[1]])

FINAL = [*model.parameters(), torch.tensor(history), train[2], valid[3]]
