"""A small text transformer learns what is praise in three domains: plain fine-tuning beside CODE-CL.

Guests write about hotels, then listeners about concerts, then buyers about laptops; is what they say good or bad? The
sentences are made here, and short, but need more than a list of words: *quiet* is praise for a room and none for a
band, *not* turns it around, and only what comes after *but* counts. The network is ``nn.Embedding`` for words and
places and ``nn.TransformerEncoderLayer``, the training loop a user's own; the lines marked with an arrow are CODE-CL.

    python examples/text_domains.py
"""

import random

import torch
from common import Rows, accuracies, compare, train
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from codecl import Method

EPOCHS, SENTENCES, SEED = 24, 600, 0
LENGTH = 18

DOMAINS = {  # who, what they write about, what is good there, and what is bad
    "hotels": (
        "we slept,i stayed,they came",
        "room,bed,lobby,garden",
        "quiet,clean,warm,cosy,sunny,safe,spacious,pretty",
        "loud,dirty,cold,damp,gloomy,shabby,narrow,ugly",
    ),
    "concerts": (
        "we danced,i listened,they sang",
        "band,singer,hall,drummer",
        "loud,gloomy,wild,lively,brilliant,tight,fresh,bold",
        "quiet,sunny,tame,sleepy,clumsy,sloppy,stale,timid",
    ),
    "laptops": (
        "we work,i travel,they play",
        "screen,keyboard,battery,fan",
        "cold,narrow,fast,bright,light,durable,precise,modern",
        "warm,spacious,slow,dim,heavy,fragile,sluggish,dated",
    ),
}
OTHERS = ["<pad>", "<start>", "the", "was", "not", "very", "but", "and", "today", "here", "again"]
THEIRS = [word for of_domain in DOMAINS.values() for words in of_domain for word in words.replace(",", " ").split()]
NUMBER = {word: i for i, word in enumerate(dict.fromkeys([*OTHERS, *THEIRS]))}


def sentence(domain: str, chance: random.Random) -> tuple[str, int]:
    """A sentence and whether it is praise: ``we slept here and the bed was loud but the room was not very small``."""
    who, what, good, bad = (several.split(",") for several in DOMAINS[domain])

    def clause(praise: bool) -> str:
        turned = chance.random() < 0.5
        words = ["the", chance.choice(what), "was", *["not"] * turned, *["very"] * (chance.random() < 0.5)]
        return " ".join([*words, chance.choice(good if praise != turned else bad)])

    praise = chance.random() < 0.5
    start = f"{chance.choice(who)} {chance.choice(['today', 'here', 'again'])} and"
    first = f"{clause(not praise)} but " if chance.random() < 0.5 else ""
    return f"{start} {first}{clause(praise)}", int(praise)


def tasks() -> list[tuple[TensorDataset, TensorDataset]]:
    """Training and test part of every domain, 600 and 200 sentences."""
    chance, parts = random.Random(SEED), []
    for domain in DOMAINS:
        written = [sentence(domain, chance) for _ in range(SENTENCES + 200)]
        x = torch.tensor([numbers(text) for text, _ in written])
        y = torch.tensor([praise for _, praise in written])
        parts.append((TensorDataset(x[:SENTENCES], y[:SENTENCES]), TensorDataset(x[SENTENCES:], y[SENTENCES:])))
    return parts


def numbers(text: str) -> list[int]:
    found = [NUMBER[word] for word in ("<start>", *text.split())]
    return found + [NUMBER["<pad>"]] * (LENGTH - len(found))


class Network(nn.Module):
    """Two layers of attention over the words; what they make of ``<start>`` is classified."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(len(NUMBER), width)
        self.places = nn.Embedding(LENGTH, width)
        layers = [
            nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
            for _ in range(2)
        ]
        self.layers = nn.ModuleList(layers)
        self.classifier = nn.Linear(width, 2)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.3)  # what a word means is learned, not drawn

    def forward(self, text: Tensor) -> Tensor:
        empty = text == NUMBER["<pad>"]
        x = self.words(text) + self.places(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=empty)
        return self.classifier(x[:, 0])


def learn_all(make_method: type[Method], **settings: object) -> Rows:
    """``rows[i][j]``: the accuracy on domain j after learning domain i."""
    torch.manual_seed(SEED)
    model = Network()
    method = make_method(model, heads=["classifier"], **settings)  # ←
    rows: Rows = []
    stream = tasks()
    for t, (learn, _) in enumerate(stream):
        loader = DataLoader(learn, batch_size=32, shuffle=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        method.guard(optimizer)  # ←
        method.begin_task(t, loader)  # ←
        train(model, loader, optimizer, EPOCHS)
        method.end_task(loader)  # ←
        rows.append(accuracies(method, [test for _, test in stream[: t + 1]]))
    return rows


def main() -> None:
    chance = random.Random(SEED + 1)
    for domain in DOMAINS:
        text, praise = sentence(domain, chance)
        print(f"{domain:<10}{'good' if praise else 'bad ':<6}{text}")
    print()
    compare(list(DOMAINS), learn_all, {"aperture": {"words*": 300.0, "*": 16.0}, "free_dims": 8})


if __name__ == "__main__":
    main()
