"""Statements of random modules, as Python text.

``h`` is the tensor that the program works on. A *layout* says where its samples lie:

    s (B, T, N)    t (T, B, N)    f (B, N)    r (B * T, N)
    q (T * B, N)   c (B, N, T)    i (B, N, T, 2)

``<P N,N>`` stands for a parameter of that shape, ``<M nn.Linear(N, N)>`` for a module, ``<T N,N>``
for a parameter that others use as well. ``d`` is the dimension of the samples.
"""

from __future__ import annotations

ANY = (  # of any layout; the samples stay where they are
    "h = h.tanh()",
    "h = h.relu() + 0.1 * h",
    "h = h.clone().relu_() + h",
    "h = h * <P 1>",
    "h = <P ()> + h",
    "h = h.mul(<P 1>.exp())",
    "h = h.clone().mul_(<P 1>)",
    "h = h.clone(); h += <P 1>",
    "h = torch.where(h > 0, h, h * <P 1>)",
    "h = h / (1 + <P 1>.abs())",
    "h = (h.abs() + 0.5).pow(<P 1>)",
    "h = torch.lerp(h, h * 2, <P 1>)",
    "h = torch.stack([h, h * <P 1>]).sum(0)",
    "h = torch.cat([h.unsqueeze(0), h.unsqueeze(0) * <P 1>]).prod(0)",
    "h = torch.addcmul(h, h, <P 1>.expand_as(h))",
    "h = F.prelu(h, <P 1>)",
    "o = torch.empty_like(h); o.copy_(h * <P 1>); h = o",
    "o = torch.zeros_like(h); o += h; o.mul_(<P 1>); h = o",
    "o = torch.zeros(h.shape, dtype=h.dtype); o.add_(h); h = o * <P 1>",
    "o = h.new_zeros(h.shape); o[...] = h * <P 1>; h = o",
    "with torch.no_grad():\n    g = h * <P 1>\nh = h * g.tanh()",
    "h = h + (h * <P 1>).detach()",
    "h = h.masked_fill(h.detach() > 1, 0.5) * <P 1>",
    "h = h.contiguous().clone(memory_format=torch.contiguous_format) * <P 1>",
    "h = sum(p * <P 1> for p in h.unsqueeze(-1).unbind(-1))",
    "h = h - <P 1>.mean()",
    "h = torch.maximum(h, <P 1>)",
    "h = h.reshape(h.shape).view_as(h) * <P 1>",
    "h = h.to(torch.float64).double().type_as(h) * <P 1>",
    "h = h.unsqueeze(0).expand(2, *h.shape).mean(0) * <P 1>",
    "h = torch.clamp(h, <P 1> - 1, <P 1> + 1)",
)
LAST = (  # layouts whose last dimension has size N: s, t, f, r, q
    "h = <M nn.Linear(N, N)>(h)",
    "h = <M nn.Linear(N, N, bias=False)>(h)",
    "h = <M nn.LayerNorm(N)>(h)",
    "h = <M nn.RMSNorm(N)>(h)",
    "h = h * <P N>",
    "h = h + <P N>",
    "h = h * <P N,1>[:, 0]",
    "h = h @ <P N,N>",
    "h = h @ <P N,N>.t()",
    "h = h @ <P N,N>.T",
    "h = h @ <P N,N>.mT",
    "h = F.linear(h, <P N,N> + 1, <P N>)",
    "h = F.linear(h, <P N,N> / <P N,N>.norm())",
    "h = F.linear(h, <T N,N>)",
    "h = F.linear(h, <T N,N>.t())",
    "h = h * <T N,N>[0] + <T N,N>[1]",
    "h = h @ (<P N,2> @ <P 2,N>) + h",
    "h = torch.einsum('...n,nm->...m', h, <P N,N>)",
    "h = torch.matmul(h.unsqueeze(-2), <P N,N>).squeeze(-2)",
    "h = torch.matmul(<P N,N>, h.unsqueeze(-1)).squeeze(-1)",
    "h = torch.tensordot(h, <P N,N>, dims=1)",
    "h = (h.unsqueeze(-1) * <P N,N>).sum(-2)",
    "h = h * (h @ <P N>).unsqueeze(-1)",
    "h = h * torch.mv(<P N,N>, <P N>)",
    "h = h[..., torch.tensor(PERM)] * <P N>",
    "h = h.flip(-1) * <P N>",
    "h = h.softmax(-1) * <P N>",
    "h = h.cumsum(-1) * <P N>",
    "h = h.sort(-1).values * <P N>",
    "h = h * <P N>.softmax(0)",
    "h = torch.cat([h[..., :1], h[..., 1:] * <P N-1>], -1)",
    "h = torch.cat([h, h], -1) @ <P 2*N,N>",
    "a, b = <M nn.Linear(N, 2 * N)>(h).chunk(2, -1); h = a * b.sigmoid()",
    "h = F.glu(<M nn.Linear(N, 2 * N)>(h))",
    "o = torch.empty_like(h); o[..., :2] = h[..., :2]; o[..., 2:] = h[..., 2:] * <P N-2>; h = o",
    "o = h.clone(); o[..., 0] = <P ()>; h = o",
    "o = h.clone(); o[..., 0] += <P 1>; h = o",
    "o = h.clone(); o[..., 1:].mul_(<P N-1>); h = o",
    "o = h.clone(); v = o[..., 0]; v.copy_(h[..., 1] * <P 1>); h = o * 2",
    "h = h + torch.mul(h.detach(), 2) * <P N>",
    "h = F.normalize(h, dim=-1) * <P N>",
    "h = h / h.norm(dim=-1, keepdim=True).clamp_min(0.1) * <P N>",
    "h = <M nn.utils.parametrizations.weight_norm(nn.Linear(N, N))>(h)",
    "h = <M nn.Bilinear(N, N, N)>(h, h)",
    "h = <M nn.Sequential(nn.Linear(N, 5), nn.ReLU(inplace=True), nn.Linear(5, N))>(h)",
    "h = <M nn.PReLU()>(h)",
    "h = h + F.embedding(h.detach().argmax(-1), <P N,N>)",
    "h = h + <P N,N>[h.detach().argmax(-1)]",
    "h = torch.gather(h, -1, h.detach().argsort(-1)) * <P N>",
    "h = h.scatter(-1, h.detach().argmax(-1, keepdim=True), 0.5) * <P N>",
    "h = h.index_select(-1, torch.tensor(PERM)) * <P N>",
    "h = torch.addmm(<P N>, h.reshape(-1, N), <P N,N>).view(h.shape)",
    "h = h.unflatten(-1, (2, N // 2)).mul(<P 2,1>).flatten(-2)",
    "h = h.view(*h.shape[:-1], 2, -1).transpose(-1, -2).reshape(h.shape) * <P N>",
    "h = h.t().clone().t() * <P N> if h.dim() == 2 else h.mT.clone().mT * <P N>",
    "h = checkpoint(lambda y: (y * <P N>).sin(), h, use_reentrant=False)",
    "h = torch.outer(h.reshape(-1), <P 3>).sum(-1).view(h.shape)",
    (
        "h = torch.baddbmm(<P N>, h.reshape(-1, 1, N), "
        "<P N,N>.expand(h.numel() // N, N, N)).view(h.shape)"
    ),
    "h = torch.complex(h, h * <P N>).abs()",
    "h = torch.view_as_real(torch.fft.fft(h)).sum(-1) * <P N>",
    "h = F.pad(h, (1, 0))[..., :-1] * <P N>",
    "h = torch.nn.functional.layer_norm(h, (N,)) * <P N>",
)
FIRST = (  # layouts with the samples in dimension 0: s, f, r, c, i
    "w = h.detach().flatten(1).sum(1).argsort(); h = (h[w] * <P 1>)[w.argsort()]",
    (
        "w = h.detach().flatten(1).sum(1).argsort(); o = torch.empty_like(h); "
        "o[w] = h[w] * <P 1>; h = o"
    ),
    "h = torch.cat([y * <P 1> for y in h.split(1)])",
    "a, b = (torch.cat([h, h * 2]) * <P 1>).chunk(2); h = a + b.tanh()",
    "h = torch.stack([h, h * <P 1>], 1).flatten(0, 1).view(h.shape[0], 2, *h.shape[1:]).mean(1)",
    "h = h.repeat_interleave(2, 0).view(h.shape[0], 2, *h.shape[1:])[:, 0] * <P 1>",
    "h = h[torch.arange(len(h))] * <P 1>",
    "h = h[torch.arange(len(h)).flip(0)] * <P 1>; h = h[torch.arange(len(h)).flip(0)]",
    "h = h.index_select(0, torch.arange(len(h))) * <P 1>",
    "w = torch.arange(len(h)).flip(0); h = (h[w] * <P 1>)[w.argsort()]",
    (
        "o = torch.zeros_like(h); w = h.flatten(1)[:, 0] > 0; o[w] = h[w] * <P 1>; "
        "o[~w] = h[~w].sin(); h = o"
    ),
    "o = torch.zeros_like(h); w = h.flatten(1)[:, 0] > 0; o[w] += h[w] * <P 1>; h = o + h",
    "w = (h.flatten(1)[:, 0] > 0).nonzero()[:, 0]; h = h.index_add(0, w, h[w] * <P 1>)",
    "w = (h.flatten(1)[:, 0] > 0).nonzero()[:, 0]; h = h.index_copy(0, w, h[w] * <P 1>)",
    (
        "w = (h.flatten(1)[:, 0] > 0).nonzero(as_tuple=True)[0]; "
        "h = torch.zeros_like(h).index_add_(0, w, h.index_select(0, w) * <P 1>) + h"
    ),
    "w = h.flatten(1)[:, 0] > 0; h = torch.where(w.view(-1, *[1] * (h.dim() - 1)), h * <P 1>, h)",
    (
        "w = (h.flatten(1)[:, 0] > 0).double().view(-1, *[1] * (h.dim() - 1)); "
        "h = w * (h * <P 1>) + (1 - w) * h"
    ),
    "h = h.reshape(len(h), -1).mul(<P 1>).view(h.shape)",
    "h = h.flatten().mul(<P 1>).view(h.shape)",
    "h = h.reshape(-1).unflatten(0, h.shape).mul(<P 1>)",
    "h = torch.ones(len(h), *[1] * (h.dim() - 1), dtype=h.dtype) * h * <P 1>",
    "h = torch.cat(h.split([1, len(h) - 1])) * <P 1>",
    "h = torch.cat([h[1:], h[:1]]) * <P 1>; h = torch.cat([h[-1:], h[:-1]])",
    "h = h.repeat(2, *[1] * (h.dim() - 1))[len(h) :] * <P 1>",
    "h = h.flip(0).mul(<P 1>).flip(0)",
    "h = h.roll(1, 0).mul(<P 1>).roll(-1, 0)",
    (
        "h = torch.cat([h[0::2], h[1::2]]) * <P 1>; w = torch.arange(len(h)); "
        "h = h[torch.cat([w[0::2], w[1::2]]).argsort()]"
    ),
)
OF = {
    "s": (
        "h = h + <P T,N>",
        (
            "g = h.flatten(0, 1); w = g.detach().sum(-1).argsort(); o = torch.zeros_like(g); "
            "o[w] = g[w] * <P N>; h = o.view_as(h)"
        ),
        "h = h + <P 1,T,N>",
        "h = h + <P T+2,N>[:T]",
        "h = h + <M nn.Embedding(T, N)>(torch.arange(T))",
        "h = h + <M nn.Embedding(T, N)>(torch.arange(T).expand(len(h), T))",
        "h = h + <M nn.Embedding(V, N)>(ids)",
        "h = h + <M nn.Embedding(V, N, padding_idx=0)>(ids)",
        "h = h + F.embedding(ids, <T V,N>); h = h + F.linear(h, <T V,N>).softmax(-1) @ <T V,N>",
        "h = h * keep.unsqueeze(-1) * <P N>",
        "h = h.masked_fill(~keep.unsqueeze(-1), 0.0) * <P N>",
        "o = torch.zeros_like(h); o[keep] = h[keep] * <P N>; h = o",
        "o = h.clone(); o[keep] = <P N>; h = o",
        "h = <M nn.LSTM(N, N, batch_first=True)>(h)[0]",
        "h = <M nn.GRU(N, N, batch_first=True)>(h)[0]",
        "h = <M nn.RNN(N, N // 2, batch_first=True, bidirectional=True)>(h)[0]",
        "h = <M nn.GRU(N, N, batch_first=True)>(h, h[:, 0].unsqueeze(0).contiguous())[0]",
        (
            "g = pack(h, lengths, batch_first=True, enforce_sorted=False); h = unpack(<M "
            "nn.LSTM(N, N, batch_first=True)>(g)[0], batch_first=True, total_length=T)[0]"
        ),
        "h = <M nn.MultiheadAttention(N, 2, batch_first=True)>(h, h, h, need_weights=False)[0]",
        "h = <M nn.MultiheadAttention(N, 2, batch_first=True)>(h, h, h)[0]",
        "h = <M nn.TransformerEncoderLayer(N, 2, 5, 0.0, batch_first=True)>(h)",
        "h = sdpa(<M nn.Linear(N, N)>(h), h, h, is_causal=True)",
        (
            "m = torch.full((T, T), float('-inf')).triu(1).double(); "
            "h = (h @ <P N,N> @ h.mT + m).softmax(-1) @ h"
        ),
        (
            "z = h.view(-1, T, 2, N // 2).transpose(1, 2); "
            "h = sdpa(z * <P 1>, z, z).transpose(1, 2).reshape(-1, T, N)"
        ),
        "h = torch.einsum('btn,tsn->bsn', h, <P T,T,N>)",
        "h = torch.einsum('btn,st->bsn', h, <P T,T>)",
        "h = <P T,T> @ h",
        "h = torch.matmul(<P T,T>, h) * <P T,1>",
        "h = (h.mT @ <P T,T>).mT",
        "h = torch.cat([<P 1,1,N>.expand(len(h), -1, -1), h], 1)[:, :T]",
        "h = torch.cat([<P N>.repeat(len(h), 1, 1), h], 1)[:, :-1]",
        "h = torch.cat([h[:, 1:], <P N>.expand(len(h), 1, N)], 1)",
        "h = torch.stack([<M nn.Linear(N, N)>(h[:, j]) for j in range(T)], 1)",
        (
            "o = torch.zeros_like(h)\nfor j in range(T):\n"
            "    o[:, j] = h[:, j] * <P N> + (o[:, j - 1].clone() if j else 0)\nh = o"
        ),
        "h = torch.stack([y * <P N> for y in h.unbind(1)], 1)",
        "o = h.clone(); o[torch.arange(len(h)), lengths - 1] = <P N>; h = o",
        "o = h.clone(); o[torch.arange(len(h)), lengths - 1] *= <P N>; h = o",
        (
            "o = torch.zeros_like(h); o[torch.arange(len(h)), "
            "lengths - 1] = h.sum(1) * <P N>; h = o + h"
        ),
        "o = h.detach().clone(); o.requires_grad_(); h = h + o * <P N>",
        "h = h.index_put((torch.arange(len(h)), lengths - 1), <P N>, accumulate=True)",
        "h = torch.where(keep.unsqueeze(-1), <P N>, h)",
        "h = h.index_fill(1, torch.tensor([0]), 0.5) * <P N>",
        "h = h.detach().data * <P N> + h",
        (
            "o = torch.zeros(len(h), T, N, dtype=h.dtype)\nfor j in range(T):\n"
            "    o[:, j] = h[:, j] * <P N>\nh = o"
        ),
        (
            "o = torch.zeros(len(h), T, N, dtype=h.dtype)\nfor j in range(T):\n"
            "    o[:, j] = x[:, j]\nh = h + o @ <P N,N>"
        ),
        (
            "o = torch.zeros(len(h), T + 1, N, dtype=h.dtype); o[:, 1:] = h; "
            "o[:, 0] = <P N>; h = o[:, :T]"
        ),
        "o = torch.zeros(T, N, dtype=h.dtype); o[0] = <P N>; o[1:] = <P T-1,N>.tanh(); h = h + o",
        "h = h.cumsum(1) * <P N>",
        "h = h.roll(1, 1) * <P N>",
        "h = h.softmax(1) * <P N>",
        "h = h - h.mean(1, keepdim=True) * <P N>",
        "h = torch.bmm(h, h.mT @ h) * <P N>",
        "h = h.take_along_dim(h.detach().argsort(1), 1) * <P N>",
        "h = h.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, T, N)) * <P N>",
        "h = h + h[torch.arange(len(h)), lengths - 1].unsqueeze(1) * <P N>",
        "h = h.reshape(len(h), -1) @ <P T*N,T*N>; h = h.view(-1, T, N)",
        "h = h.flatten(1).mul(<P T*N>).unflatten(1, (T, N))",
        (
            "g = h.reshape(-1, N); e = (g.detach().sum(-1) > 0).long(); o = torch.zeros_like(g)\n"
            "for j in range(2):\n    w = (e == j).nonzero()[:, 0]\n"
            "    o.index_add_(0, w, F.linear(g[w], <P 2,N,N>[j]))\nh = o.view(h.shape)"
        ),
        "e = (h.detach().sum(-1) > 0).long(); h = torch.einsum('btn,btnm->btm', h, <P 2,N,N>[e])",
        "h = <M nn.GroupNorm(1, T)>(h)",
        "h = <M nn.LayerNorm((T, N))>(h)",
        "h = h + (keep.double() @ <P T,N>).unsqueeze(1)",
        "h = h + F.one_hot(ids, V).double() @ <P V,N>",
        "h = F.conv1d(h, <P T,T,3>, padding=1)",
        "h = h * (torch.arange(T) < lengths.unsqueeze(1)).unsqueeze(-1) * <P N>",
        "h = h.as_strided(h.size(), h.stride()) * <P N>",
    ),
    "t": (
        "h = h + <P T,1,N>",
        "h = <M nn.LSTM(N, N)>(h)[0]",
        "h = <M nn.GRU(N, N, num_layers=2)>(h)[0]",
        "h = <M nn.RNN(N, N // 2, bidirectional=True)>(h)[0]",
        "h = <M nn.MultiheadAttention(N, 2)>(h, h, h)[0]",
        "h = <M nn.TransformerEncoderLayer(N, 2, 5, 0.0)>(h)",
        "h = torch.cat([<P 1,1,N>.expand(-1, h.shape[1], -1), h])[:T]",
        "h = torch.stack([<M nn.Linear(N, N)>(y) for y in h])",
        "h = torch.stack([h[j] * <P T,N>[j] for j in range(T)])",
        "o = torch.empty_like(h)\nfor j in range(T):\n    o[j] = h[j] * <P N>\nh = o",
        (
            "o, y = [], torch.zeros_like(h[0])\nfor j in range(T):\n"
            "    y = <M nn.GRUCell(N, N)>(h[j], y)\n    o.append(y)\nh = torch.stack(o)"
        ),
        "h = h.cumsum(0) * <P N>",
        "h = h.flip(0) * <P N>",
        "h = torch.einsum('tbn,ts->sbn', h, <P T,T>)",
        "h = h + <M nn.Embedding(V, N)>(ids.t())",
        "h = h * keep.t().unsqueeze(-1) * <P N>",
        "h = torch.einsum('tbn,nm->tbm', h, <P N,N>)",
        "h = h[torch.tensor([*range(T)][::-1])] * <P N>",
        "h = h - h.mean(0) * <P N>",
        "h = <M nn.LayerNorm(N)>(h.transpose(0, 1)).transpose(0, 1)",
        (
            "g = pack(h, lengths, enforce_sorted=False); "
            "h = unpack(<M nn.GRU(N, N)>(g)[0], total_length=T)[0]"
        ),
        "h = (h.movedim(0, -1) @ <P T,T>).movedim(-1, 0)",
    ),
    "f": (
        "h = <M nn.GroupNorm(2, N)>(h)",
        "h = h + <M nn.EmbeddingBag(V, N)>(ids)",
        (
            "h = h + <M nn.EmbeddingBag(V, N, mode='sum')>(ids.flatten(), "
            "torch.arange(0, ids.numel(), T))"
        ),
        "h = h + <M nn.Embedding(V, N)>(ids[:, 0])",
        "h = h + <P T,N>[lengths - 1]",
        "h = h.unsqueeze(1).mul(<P 3,1>).sum(1)",
        "h = torch.stack([h, h * <P N>], 1).amax(1)",
        "h = torch.diag_embed(h).matmul(<P N>)",
        (
            "h = torch.linalg.solve(torch.eye(N, dtype=h.dtype) * 4 + <P N,N> * 0.1, "
            "h.unsqueeze(-1)).squeeze(-1)"
        ),
        "h = torch.einsum('bn,bm,nm->bn', h, h, <P N,N>)",
        "h = <M nn.BatchNorm1d(N).eval()>(h)",
        "h = h * h.norm(dim=1, keepdim=True) * <P N>",
        "h = h.t().mul(<P N,1>).t()",
        "h = (<P N,N> @ h.t()).t()",
        "h = h.T.contiguous().T @ <P N,N>",
        "h = torch.addmm(h, h, <P N,N>)",
        "y, z = torch.zeros_like(h), torch.zeros_like(h); h = <M nn.LSTMCell(N, N)>(h, (y, z))[0]",
    ),
    "r": (
        "h = h + <M nn.Embedding(V, N)>(ids.reshape(-1))",
        "h = h + <P T,N>.repeat(len(h) // T, 1)",
        "h = h + <P T,N>.expand(len(h) // T, T, N).reshape(-1, N)",
        "h = h * keep.reshape(-1, 1) * <P N>",
        "w = keep.view(-1); o = torch.zeros_like(h); o[w] = <M nn.Linear(N, N)>(h[w]); h = o",
        "h = h + F.embedding(ids.flatten(), <T V,N>)",
        "h = (h.view(-1, T, N) + <P T,N>).view(-1, N)",
        "h = <M nn.GroupNorm(2, N)>(h)",
    ),
    "q": (
        "h = h + <M nn.Embedding(V, N)>(ids.t().reshape(-1))",
        "h = h + <P T,N>.repeat_interleave(len(h) // T, 0)",
        "h = h * keep.t().reshape(-1, 1) * <P N>",
        "h = h + h.view(T, -1, N).mean(0, keepdim=True).expand(T, -1, -1).reshape(-1, N) * <P N>",
    ),
    "c": (
        "h = <M nn.Conv1d(N, N, 3, padding=1)>(h)",
        "h = <M nn.Conv1d(N, N, 3, padding='same', groups=2)>(h)",
        "h = <M nn.Conv1d(N, N, 3, padding=1, padding_mode='circular')>(h)",
        "h = <M nn.ConvTranspose1d(N, N, 3, padding=1)>(h)",
        "h = <M nn.GroupNorm(2, N)>(h)",
        "h = <M nn.InstanceNorm1d(N, affine=True)>(h)",
        "h = h * <P N,1>",
        "h = h + <P N,T>",
        "h = F.avg_pool1d(F.pad(h, (1, 1)), 3, 1) * <P N,1>",
        "h = F.max_pool1d(h, 3, 1, 1) * <P N,1>",
        "h = F.interpolate(h, scale_factor=2)[..., ::2] * <P N,1>",
        "h = F.conv1d(h, <P N,N,3>.flip(-1), padding=1)",
        "h = h @ <P T,T>",
        "h = F.pad(h, (2, 0)).unfold(2, 3, 1) @ <P 3>",
        "h = <M nn.BatchNorm1d(N).eval()>(h)",
        "h = F.adaptive_avg_pool1d(h, 1) * <P N,1> + h",
        "h = F.dropout1d(h, 0.0) * <P N,1>",
    ),
    "i": (
        "h = <M nn.Conv2d(N, N, 3, padding=1)>(h)",
        "h = <M nn.Conv2d(N, N, 1, bias=False)>(h)",
        "h = <M nn.GroupNorm(2, N)>(h)",
        "h = <M nn.Conv2d(N, N, 3, padding=1, groups=N)>(h)",
        "h = h * <P N,1,1>",
        "h = F.interpolate(h, size=(T, 2), mode='bilinear') * <P N,1,1>",
        "h = <M nn.ConvTranspose2d(N, N, 3, padding=1)>(h)",
        "h = h * h.mean((2, 3), keepdim=True).mul(<P N,1,1>).sigmoid()",
        "h = h.permute(0, 2, 3, 1).matmul(<P N,N>).permute(0, 3, 1, 2)",
        "h = h.contiguous(memory_format=torch.channels_last); h = h * <P N,1,1>",
        (
            "h = F.unfold(h, 3, padding=1).transpose(1, "
            "2).matmul(<P 9*N,N>).transpose(1, 2).reshape(h.shape)"
        ),
    ),
}
