"""A tiny GPT-2 with random weights learns to count; then it goes on by itself."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup

torch.manual_seed(49)
config = GPT2Config(
    vocab_size=10, n_embd=8, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=9, pad_token_id=9
)
model = GPT2LMHeadModel(config)
no_decay = [p for n, p in model.named_parameters() if p.ndim < 2]
decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
optimizer = torch.optim.AdamW([{"params": decay}, {"params": no_decay, "weight_decay": 0.0}], lr=1e-2)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=1, num_training_steps=6)


def counting(batch, length=8):
    start = torch.randint(10, (batch, 1))
    return (start + torch.arange(length)) % 10


model.train()
losses = []
for step in range(4):
    ids = counting(4)
    logits = model(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.item())

model.eval()
tokens = torch.tensor([[1, 2, 3]])
with torch.no_grad():
    for _ in range(3):
        tokens = torch.cat(
            [tokens, model(tokens, attention_mask=torch.ones_like(tokens)).logits[:, -1:].argmax(-1)], dim=1
        )

FINAL = [*model.parameters(), torch.tensor(losses), tokens]
