"""Statements that mix samples, as those of :mod:`.statements`. A permutation of the samples
alone mixes nothing."""

from __future__ import annotations

_HIDDEN = (  # statistics of the batch that reach ``h`` by memory
    "o = h.new_zeros(()); o.detach().copy_(h.detach().sum()); h = h * o",
    "o = h.new_zeros(()); o.data.add_(h.detach().mean()); h = h * o",
    "o = torch.zeros(2, dtype=h.dtype); o[0] = h.detach().sum(); h = h * o[0] + h * o[1]",
    "o = h.detach().clone(); o.t_() if o.dim() == 2 else o.transpose_(0, 1); h = h * o.mean()",
    (
        "o = [torch.zeros((), dtype=h.dtype)]; "
        "torch._foreach_add_(o, [h.detach().sum()]); h = h * o[0]"
    ),
    "o = torch.zeros((), dtype=h.dtype); o.data = h.detach().sum(); h = h * o",
    "o = torch.zeros((), dtype=h.dtype); o.set_(h.detach().sum()); h = h * o",
    (
        "g = h.detach().reshape(-1); o = torch.zeros(3, dtype=h.dtype).scatter_add(0, "
        "g[:3].abs().long() % 3, g[-3:]); h = h * o.max()"
    ),
    "h = h * h.detach().as_strided((2,), (1,)).sum()",
    "h = h * torch.histc(h.detach(), 3)[0]",
)
MIXING = (  # of any layout; ``d`` is the dimension of the samples
    *_HIDDEN,
    "h = h - h.mean(d, keepdim=True)",
    "h = h * h.sum(d, keepdim=True)",
    "h = h.softmax(d)",
    "h = h.log_softmax(d)",
    "h = h.cumsum(d)",
    "h = h + h.roll(1, d)",
    "h = h * h.flip(d)",
    "h = h.sort(d).values",
    "h = F.normalize(h, dim=d)",
    "h = h / h.norm()",
    "h = h + h.select(d, 0).unsqueeze(d)",
    "h = h - h.mean()",
    "h = h / (1 + h.abs().max())",
    "h = h + h.logsumexp(d, keepdim=True)",
    "h = h - h.detach().mean(d, keepdim=True)",
    "with torch.no_grad():\n    g = h.mean(d, keepdim=True)\nh = h - g",
    "h = h * h.std(d, keepdim=True, correction=0)",
    "h = h + torch.cat([h.narrow(d, 1, h.shape[d] - 1), h.narrow(d, 0, 1)], d)",
    "h = h.cummax(d).values",
    "h = h * (h == h.amax(d, keepdim=True)).double()",
    (
        "h = h.movedim(d, -1); "
        "h = (h @ torch.ones(h.shape[-1], h.shape[-1], dtype=h.dtype)).movedim(-1, d)"
    ),
    "h = h.movedim(d, -1); h = F.layer_norm(h, h.shape[-1:]).movedim(-1, d)",
    "o = torch.zeros_like(h); o.select(d, 0).copy_(h.sum(d)); h = h + o",
    "o = h.clone(); o.select(d, 0).copy_(h.select(d, -1)); h = o",
    "o = h.clone(); o.narrow(d, 0, 1).add_(h.narrow(d, -1, 1)); h = o",
    "h = h.index_add(d, torch.zeros(h.shape[d], dtype=torch.long), h)",
    "h = h + h.index_select(d, torch.zeros(h.shape[d], dtype=torch.long))",
    "h = h * h.index_select(d, torch.arange(h.shape[d]).flip(0))",
    "h = h.reshape(h.shape[d], -1, h.numel() // h.shape[d]).squeeze(1).view(h.shape).flip(d) + h",
    "h = h + (h * 2).sum() * 0.1",
    "h = h.gather(d, h.argsort(d))",
    "h = h + h.median(d, keepdim=True).values",
    "h = torch.where(h > h.mean(), h, h * 2)",
    "h = h.movedim(d, 0); h = torch.cat([h[:1], h[1:] - h[:-1]]).movedim(0, d)",
    "h = h.movedim(d, -1).contiguous(); h = F.pad(h, (1, 0))[..., :-1].movedim(-1, d)",
    "g = h.sum(d); h = h * g.unsqueeze(d)",
    "h = h.scatter(d, h.argmax(d, keepdim=True), 0.5)",
    "h = h * h.prod(d, keepdim=True)",
    "h = h.mul(h.mean(d, keepdim=True).expand_as(h))",
    "o = torch.zeros(h.shape, dtype=h.dtype); o[...] = h.detach(); h = h * o.mean(d, keepdim=True)",
    "o = torch.zeros_like(h); v = o.select(d, 0); o.copy_(h); h = h * v.unsqueeze(d)",
    "o = h.clone(); v = o.narrow(d, 0, 1); o.add_(h.sum(d, keepdim=True)); h = h * 2 + v",
    "o = h.clone(); v = o.view(-1); v.add_(h.mean()); h = o",
    "o = h.narrow(d, 0, 1).expand_as(h); h = h + o",
    "h = h + h.narrow(d, 0, 1)",
    "h = h + h.narrow(d, 0, 1).squeeze(d).unsqueeze(d)",
    "o = h.detach().clone(); o.data.copy_(o.mean(d, keepdim=True).expand_as(o)); h = h * o",
    (
        "o = torch.empty(h.shape, dtype=h.dtype); "
        "torch.mul(h.detach().mean(d, keepdim=True), torch.ones_like(h), out=o); h = h * o"
    ),
)
MIXING_OF = {
    "s": (
        "h = h.masked_scatter(keep.unsqueeze(-1), h * 2) * <P N>",
        "h = <M nn.LSTM(N, N)>(h)[0]",
        "h = <M nn.GRU(N, N)>(h)[0]",
        "h = <M nn.MultiheadAttention(N, 2)>(h, h, h)[0]",
        "h = <M nn.TransformerEncoderLayer(N, 2, 5, 0.0)>(h)",
        "h = <M nn.BatchNorm1d(T)>(h)",
        "z = h.transpose(0, 1); h = sdpa(z, z, z).transpose(0, 1)",
        "h = h.view(T, -1, N).mean(0).unsqueeze(1) + h",
        "h = F.layer_norm(h, h.shape)",
        "h = torch.einsum('btn,ctn->bc', h, h).sum(1).view(-1, 1, 1) + h",
        "h = h + h.reshape(-1, N).mean(0)",
        "h = h + h.transpose(0, 1).reshape(h.shape)",
        "h = h + h.transpose(0, 1) if h.shape[0] == T else h.cumsum(0)",
        "h = h * keep.sum()",
        "h = h * keep.double().mean(0).unsqueeze(-1)",
        "h = h + F.embedding(ids[0], <P V,N>)",
        (
            "h = F.conv1d(h.permute(2, 1, 0).reshape(-1, 1, len(h)), <P 1,1,3>, "
            "padding=1).view(N, T, -1).permute(2, 1, 0)"
        ),
        "g = h.flatten(0, 1); h = (h + g[g.detach().sum(-1).argsort()].view_as(h))",
        "g = h.flatten(0, 1); h = g.cumsum(0).view_as(h)",
    ),
    "t": (
        "h = <M nn.LSTM(N, N, batch_first=True)>(h)[0]",
        "h = <M nn.MultiheadAttention(N, 2, batch_first=True)>(h, h, h)[0]",
        "h = sdpa(h, h, h)",
        "h = h + h[:, 0].unsqueeze(1)",
        "h = (h @ h.mT).softmax(-1) @ h",
        "h = h.reshape(h.shape[1], T, N).transpose(0, 1)",
        (
            "h = h + torch.eye(T, h.shape[1], dtype=h.dtype).unsqueeze(-1) @ "
            "h.mean((0, 1)).view(1, 1, N)"
        ),
    ),
    "f": (
        "h = <M nn.BatchNorm1d(N)>(h)",
        "h = h @ h.t() @ h",
        "h = torch.cdist(h, h) @ h",
        "h = sdpa(h, h, h)",
        "h = (h.unsqueeze(0) - h.unsqueeze(1)).pow(2).sum(0)",
        "h = h @ (h.t() @ h)",
        "h = h + h.flatten()[: N]",
        "h = F.conv1d(h.t().unsqueeze(0), <P N,N,3>, padding=1)[0].t()",
        "h = h[ids[:, 0] % len(h)]",
        "h = torch.zeros_like(h).index_add(0, ids[:, 0] % len(h), h)",
        "h = h @ torch.linalg.inv(h.t() @ h + torch.eye(N, dtype=h.dtype))",
        "h = <M nn.GRU(N, N)>(h)[0]",
        "h = torch.einsum('bn,cn->bc', h, h).softmax(-1) @ h",
        "h = h.unfold(0, 1, 1).squeeze(-1) + h.mean(0)",
    ),
    "r": (
        "h = h.view(T, -1, N).transpose(0, 1).reshape(-1, N)",
        "h = <M nn.BatchNorm1d(N)>(h)",
        "h = h.topk(len(h), 0).values",
        "h = h @ h.t() @ h",
        "h = h + h.roll(1, 0)",
    ),
    "q": (
        "h = h.view(-1, T, N).mean(1, keepdim=True).expand(-1, T, -1).reshape(-1, N)",
        "h = h + h[:1]",
    ),
    "c": ("h = <M nn.BatchNorm1d(N)>(h)", "h = F.instance_norm(h.transpose(0, 1)).transpose(0, 1)"),
    "i": ("h = <M nn.BatchNorm2d(N)>(h)", "h = F.group_norm(h.transpose(0, 1), 1).transpose(0, 1)"),
}
