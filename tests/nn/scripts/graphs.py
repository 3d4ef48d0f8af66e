import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


# graph convolution by sparse products, and attention over neighbours by masks
class GraphConv(nn.Module):
    def __init__(self, input_dim, output_dim, use_bias=False):
        super().__init__()
        self.kernel = nn.Parameter(torch.Tensor(input_dim, output_dim))
        nn.init.xavier_normal_(self.kernel)
        self.bias = None
        if use_bias:
            self.bias = nn.Parameter(torch.Tensor(output_dim))
            nn.init.zeros_(self.bias)

    def forward(self, x, adj):
        out = torch.spmm(adj, torch.mm(x, self.kernel))
        return out if self.bias is None else out + self.bias


class GraphAttention(nn.Module):
    def __init__(self, in_features, out_features, heads):
        super().__init__()
        self.heads, self.hidden = heads, out_features // heads
        self.W = nn.Parameter(torch.empty(size=(in_features, out_features)))
        self.a = nn.Parameter(torch.empty(size=(heads, 2 * self.hidden, 1)))

    def forward(self, h, adj):
        n = h.shape[0]
        ht = torch.mm(h, self.W).view(n, self.heads, self.hidden).permute(1, 0, 2)  # (heads, n, hidden)
        source = torch.matmul(ht, self.a[:, : self.hidden, :])
        target = torch.matmul(ht, self.a[:, self.hidden :, :])
        e = F.leaky_relu(source + target.mT, 0.2)
        e = torch.where(adj > 0, e, -9e16 * torch.ones_like(e))
        out = torch.matmul(F.softmax(e, dim=-1), ht)
        return F.elu(out.permute(1, 0, 2).contiguous().view(n, -1))


rng = np.random.default_rng(0)
n = 8
edges = np.unique(rng.integers(0, n, (20, 2)), axis=0)
index = torch.tensor(edges.T)
adj = torch.sparse_coo_tensor(index, torch.ones(len(edges)), (n, n))
dense = torch.eye(n)
dense[index[0], index[1]] = 1
scale = torch.diag(dense.sum(1).pow(-0.5))
normal = (scale @ dense @ scale).to_sparse()
x = torch.tensor(rng.standard_normal((n, 5)), dtype=torch.float32)
labels = torch.tensor(rng.integers(0, 3, n))
order = torch.tensor(rng.permutation(n))
train, test = order[:5], order[5:]
conv1, attend, conv2 = GraphConv(5, 8, True), GraphAttention(8, 8, 2), GraphConv(8, 3)
layers = nn.ModuleList([conv1, attend, conv2])
for p in layers.parameters():
    p.data = torch.from_numpy(rng.standard_normal(tuple(p.shape)).astype("float32")) * 0.4
optimizer = torch.optim.Adam(layers.parameters(), lr=0.05, weight_decay=5e-4)
criterion = nn.NLLLoss()
losses = []
for epoch in range(4):
    layers.train()
    optimizer.zero_grad()
    h = F.relu(conv1(x, normal))
    h = attend(F.dropout(h, 0.5, training=False), dense)
    out = F.log_softmax(conv2(h, adj), dim=1)
    loss = criterion(out[train], labels[train])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
layers.eval()
with torch.no_grad():
    out = F.log_softmax(conv2(attend(F.relu(conv1(x, normal)), dense), adj), dim=1)
    accuracy = out[test].argmax(dim=1).eq(labels[test]).float().mean().item()
degree = torch.zeros(n).scatter_add_(0, index[0], torch.ones(index.shape[1]))
pooled = torch.zeros(n, 5).index_add_(0, index[1], x[index[0]]) / degree.clamp(min=1).unsqueeze(-1)
result = dict(losses=losses, accuracy=accuracy, out=out, dense=adj.to_dense(), degree=degree, pooled=pooled)
