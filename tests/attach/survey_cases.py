"""A model with one layer of each role, and the roles that a survey finds."""

from torch import nn

from codecl.attach import survey


class Net(nn.Module):
    """One layer of each role."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.still = nn.Linear(6, 6).requires_grad_(False)
        self.adapter = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, x):
        return self.classifier(self.adapter(self.still(self.norm(self.conv(x)).mean((2, 3)))))


def roles(model: nn.Module, **settings) -> dict[str, str]:
    return {row.name: row.role for row in survey(model, **settings)}
