import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.layer1 = Block(8, 8)
        self.layer2 = Block(8, 16, 2)
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        x = torch.flatten(self.pool(x), 1)
        return self.fc(x)


def settle(model):
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype(np.float32) * 0.3))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
settle(model)
rng = np.random.default_rng(1)
X = torch.tensor(rng.standard_normal((32, 1, 12, 12)), dtype=torch.float32)
Y = torch.tensor(rng.integers(0, 10, 32))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
sched = CosineAnnealingLR(opt, T_max=6)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
losses = []
for epoch in range(2):
    model.train()
    for i in range(0, len(X), 16):
        x, y = X[i : i + 16].to(device), Y[i : i + 16].to(device, non_blocking=True)
        opt.zero_grad(set_to_none=True)
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    sched.step()
model.eval()
correct = 0
with torch.no_grad():
    out = model(X)
    pred = out.argmax(dim=1, keepdim=True)
    correct += pred.eq(Y.view_as(pred)).sum().item()
    _, predicted = torch.max(out.data, 1)
result = dict(
    losses=losses,
    lr=sched.get_last_lr(),
    out=out,
    correct=correct,
    predicted=predicted,
    n=sum(p.numel() for p in model.parameters() if p.requires_grad),
    mean=model.state_dict()["stem.1.running_mean"],
    tracked=model.stem[1].num_batches_tracked,
    names=[n for n, _ in model.named_parameters()],
)
