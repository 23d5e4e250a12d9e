"""A tiny BERT with random weights: masked words for a pretraining step or two, then its pooled output for a classifier."""

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(48)
config = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=10,
)
model = BertForMaskedLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
MASK = 3


def mask_tokens(ids, probability=0.3):
    chosen = torch.rand(ids.shape) < probability
    chosen[:, 0] = True
    labels = ids.masked_fill(~chosen, -100)
    return ids.masked_fill(chosen, MASK), labels


model.train()
for step in range(3):
    ids = torch.randint(4, 20, (2, 6))
    attention = torch.ones_like(ids)
    attention[1, 4:] = 0
    inputs, labels = mask_tokens(ids)
    output = model(input_ids=inputs, attention_mask=attention, labels=labels)
    optimizer.zero_grad()
    output.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model.bert.requires_grad_(False)
classifier = nn.Linear(8, 2)
tuner = torch.optim.AdamW(classifier.parameters(), lr=1e-2)
for step in range(2):
    ids = torch.randint(4, 20, (2, 6))
    features = model.bert(input_ids=ids).last_hidden_state[:, 0]
    loss = nn.functional.cross_entropy(classifier(features), torch.tensor([0, 1]))
    tuner.zero_grad()
    loss.backward()
    tuner.step()

FINAL = [*model.parameters(), *classifier.parameters(), output.loss.detach()]
