"""A transformer's block whose attention is a function that the caller chooses."""

from torch import nn


class Block(nn.Module):
    """On x [batch, n, width]. attention(q, k, v) takes and returns tensors [batch, heads, n, width / heads]. linear: the
    class of the layers that multiply by a matrix."""

    def __init__(self, width, heads, attention, linear=nn.Linear):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = linear(width, 3 * width), linear(width, width)
        self.mlp = nn.Sequential(linear(width, 4 * width), nn.GELU(), linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm2(x))
