"""Statements that lead to another layout, losses, and statements that know the batch, as those
of :mod:`.statements`."""

from __future__ import annotations

MOVES = {  # to another layout
    "s": (
        ("t", "h = h.transpose(0, 1)"),
        ("t", "h = h.permute(1, 0, 2).contiguous()"),
        ("t", "h = torch.stack(h.unbind(1))"),
        ("t", "h = torch.einsum('btn->tbn', h)"),
        ("r", "h = h.reshape(-1, N)"),
        ("r", "h = h.flatten(0, 1)"),
        ("r", "h = torch.cat([y.squeeze(0) for y in h.split(1)])"),
        ("q", "h = h.transpose(0, 1).reshape(-1, N)"),
        ("q", "h = torch.cat(h.unbind(1))"),
        ("c", "h = h.transpose(1, 2)"),
        ("c", "h = h.mT.contiguous()"),
        ("f", "h = h.mean(1)"),
        ("f", "h = h[:, 0]"),
        ("f", "h = h[:, -1, :]"),
        ("f", "h = h[torch.arange(len(h)), lengths - 1]"),
        ("f", "h = h.amax(1)"),
        ("f", "h = h.max(1).values"),
        ("f", "h = h.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, N)).squeeze(1)"),
        ("f", "h = (h * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)"),
        (
            "f",
            (
                "h = torch.cat([<P N>.expand(len(h), 1, N), h], 1); "
                "h = <M nn.MultiheadAttention(N, 2, batch_first=True)>(*[h] * 3)[0][:, 0]"
            ),
        ),
        ("f", "h = ((h @ <P N>).softmax(1).unsqueeze(1) @ h).squeeze(1)"),
        ("f", "h = <M nn.LSTM(N, N, batch_first=True)>(h)[1][0][-1]"),
        (
            "f",
            (
                "h = <M nn.GRU(N, N, batch_first=True)>(pack(h, lengths, batch_first=True, "
                "enforce_sorted=False))[1][-1]"
            ),
        ),
        ("f", "h = h.flatten(1) @ <P T*N,N>"),
        ("f", "h = torch.einsum('btn,tn->bn', h, <P T,N>)"),
        (
            "f",
            (
                "w = keep.nonzero(); h = torch.zeros(len(h), N, dtype=h.dtype).index_add_(0, "
                "w[:, 0], h[keep] * <P N>)"
            ),
        ),
        (
            "f",
            (
                "w = torch.arange(len(h)).repeat_interleave(T); "
                "h = torch.zeros_like(h[:, 0]).index_add(0, w, h.reshape(-1, N) * <P N>)"
            ),
        ),
    ),
    "t": (
        ("s", "h = h.transpose(0, 1)"),
        ("s", "h = h.permute(1, 0, 2).contiguous()"),
        ("s", "h = torch.stack(list(h), 1)"),
        ("q", "h = h.reshape(-1, N)"),
        ("q", "h = h.flatten(0, 1)"),
        ("f", "h = h.mean(0)"),
        ("f", "h = h[0]"),
        ("f", "h = h[-1]"),
        ("f", "h = <M nn.GRU(N, N)>(h)[1].squeeze(0)"),
        ("f", "h = h[lengths - 1, torch.arange(h.shape[1])]"),
        ("c", "h = h.permute(1, 2, 0)"),
    ),
    "f": (
        ("s", "h = h.unsqueeze(1) * <P T,N>"),
        ("s", "h = h.unsqueeze(1).expand(-1, T, -1)"),
        ("s", "h = h[:, None].repeat(1, T, 1)"),
        ("s", "h = torch.stack([h] * T, 1)"),
        ("s", "h = (h @ <P N,T*N>).view(-1, T, N)"),
        ("s", "h = h.repeat_interleave(T, 0).view(-1, T, N)"),
        ("t", "h = torch.stack([h] * T)"),
        ("t", "h = h.expand(T, *h.shape)"),
        ("t", "h = h * <P T,1,N>"),
        ("r", "h = h.repeat_interleave(T, 0)"),
        ("q", "h = h.repeat(T, 1)"),
        ("q", "h = torch.cat([h] * T)"),
        ("c", "h = h.unsqueeze(-1) * <P T>"),
        ("s", "h = torch.einsum('bn,tm->btm', h, <P T,N>)"),
        ("s", "w = torch.arange(len(h)).unsqueeze(1).expand(-1, T); h = h[w] * <P T,N>"),
    ),
    "r": (
        ("s", "h = h.view(-1, T, N)"),
        ("s", "h = h.reshape(x.shape[0], T, N)"),
        ("s", "h = h.unflatten(0, (-1, T))"),
        ("f", "h = h.view(-1, T, N)[:, 0]"),
        ("f", "h = h[::T]"),
        ("f", "h = h.view(-1, T * N) @ <P T*N,N>"),
    ),
    "q": (
        ("t", "h = h.view(T, -1, N)"),
        ("t", "h = torch.stack(h.chunk(T))"),
        ("f", "h = h.view(T, -1, N).sum(0)"),
        ("f", "h = h.chunk(T)[-1]"),
        ("f", "h = h[: x.shape[0]]"),
    ),
    "c": (
        ("s", "h = h.transpose(1, 2)"),
        ("s", "h = h.permute(0, 2, 1).contiguous()"),
        ("t", "h = h.permute(2, 0, 1)"),
        ("i", "h = torch.stack([h, h * 2], -1)"),
        ("i", "h = h.unsqueeze(-1) * <P 2>"),
        ("f", "h = h.mean(-1)"),
        ("f", "h = F.adaptive_avg_pool1d(h, 1).flatten(1)"),
        ("f", "h = h[..., 0]"),
    ),
    "i": (
        ("c", "h = h.mean(-1)"),
        ("c", "h = h[..., 1]"),
        ("c", "h = F.avg_pool2d(h, (1, 2)).squeeze(-1)"),
        ("c", "h = F.max_pool2d(h, (1, 2)).flatten(2)"),
        ("f", "h = h.mean((2, 3))"),
        ("f", "h = h.flatten(2).sum(-1)"),
    ),
}
_PARTS = (
    "h = torch.cat([h[:1] * <P 1>, h[1:].tanh()])",
    "o = torch.zeros_like(h); o[:1] = h[:1]; o[1:] = h[1:] * <P 1>; h = o",
    "o = torch.zeros(h.shape, dtype=h.dtype); o[:1] = h[:1]; o[1:] = h[1:] * <P 1>; h = o",
    "o = h.clone(); o[-1:] *= <P 1>; h = o",
)
# statements that differ for a sample alone: the size of the batch is a constant, or the
# place in it counts
WHOLE = {
    "s": (
        *_PARTS,
        "h = h + <P BATCH,T,N>",
        "h = h * <P BATCH,1,1>",
        "h = torch.cat([<P BATCH,1,N>, h], 1)[:, :T]",
    ),
    "t": (
        "h = h * <P BATCH,1>",
        "h = h + <P T,BATCH,N>",
        "h = torch.cat([h[:, :1] * <P 1>, h[:, 1:]], 1)",
    ),
    "f": (*_PARTS, "h = h + <P BATCH,N>", "h = h * <P BATCH,1>"),
    "r": (*_PARTS, "h = h.view(BATCH, T, N).mul(<P BATCH,1,N>).view(-1, N)"),
    "q": ("h = h.view(T, BATCH, N).mul(<P BATCH,N>).view(-1, N)",),
    "c": (*_PARTS, "h = h * <P BATCH,N,1>"),
    "i": (*_PARTS, "h = h * <P BATCH,1,1,1>"),
}
LOSSES = {  # the loss, and the loss of each sample, or None where torch does not tell it
    "f": (
        "per = h.pow(2).sum(1); loss = per.sum()",
        "per = h.sin().sum(1); loss = per.mean()",
        "loss = h.pow(2).mean(); per = h.pow(2).mean(1)",
        (
            "per = F.cross_entropy(<M nn.Linear(N, C)>(h), target, "
            "reduction='none'); loss = per.mean()"
        ),
        "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), target); per = None",
        "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), target, reduction='sum'); per = None",
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), marked[:, 0], "
            "ignore_index=-100); per = None"
        ),
        (
            "loss = F.cross_entropy(h, torch.where(target < N, target, 0), "
            "label_smoothing=0.1); per = None"
        ),
        "loss = F.cross_entropy(h, (h.detach() * 2).softmax(-1)); per = None",
        (
            "loss = F.nll_loss(h.log_softmax(-1)[:, :C] if N >= C else h.log_softmax(-1), "
            "target % min(N, C)); per = None"
        ),
        "loss = F.mse_loss(h, x[:, 0]); per = None",
        "loss = F.mse_loss(h, torch.zeros_like(h), reduction='sum'); per = None",
        "loss = F.smooth_l1_loss(h, x.mean(1), reduction='none').mean(); per = None",
        "loss = F.binary_cross_entropy_with_logits(h @ <P N>, keep[:, 0].double()); per = None",
        "loss = F.binary_cross_entropy(h.mean(1).sigmoid(), keep[:, 0].double()); per = None",
        "loss = F.kl_div(h.log_softmax(-1), x[:, 0].softmax(-1), reduction='sum'); per = None",
        (
            "loss = F.kl_div(h.log_softmax(-1), x[:, 0].softmax(-1), "
            "reduction='batchmean'); per = None"
        ),
        "loss = h.abs().sum() * 3; per = None",
        "loss = -h.log_softmax(-1).gather(1, target.view(-1, 1) % N).mean(); per = None",
        "loss = h.sum(0).sum(); per = h.sum(1)",
        "loss = h.sum(1).mean(0) * 2; per = h.sum(1) * 2",
        "loss = h.pow(2).sum() + h.sin().sum(); per = None",
        "loss = 0.5 * h.pow(2).mean() + 2 * h.sin().sum(1).mean(); per = None",
        "loss = F.multi_margin_loss(h, target % N); per = None",
        "loss = F.cosine_embedding_loss(h, x[:, 0], keep[:, 0].double() * 2 - 1); per = None",
        "loss = F.triplet_margin_loss(h, x[:, 0], x[:, -1]); per = None",
        "loss = F.l1_loss(h, x[:, 0]); per = None",
        "loss = F.huber_loss(h, x[:, 0], reduction='sum'); per = None",
        "loss = F.gaussian_nll_loss(h, x[:, 0], h.detach().exp()); per = None",
        (
            "loss = F.cross_entropy(h, (x[:, 0] * 2).softmax(-1), weight=torch.linspace(0.5, 2, "
            "N).double()); per = None"
        ),
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), marked[:, 0], label_smoothing=0.2, "
            "reduction='sum'); per = None"
        ),
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), target, weight=torch.linspace(0.5, 2, "
            "C).double()); per = None"
        ),
        "loss = torch.zeros(()).double(); loss += h.pow(2).sum(); per = None",
        "loss = sum([y.pow(2).mean() for y in h.unbind(1)]) / N; per = None",
        "loss = torch.stack([h.pow(2).sum(), h.sin().sum()]).sum(); per = None",
        "per = h.pow(2).sum(1); loss = per @ torch.ones(len(h), dtype=h.dtype)",
        "loss = torch.einsum('bn->', h.pow(2)); per = None",
        "loss = (h * h).flatten().dot(torch.ones(h.numel(), dtype=h.dtype)); per = None",
    ),
    "s": (
        "per = h.pow(2).sum((1, 2)); loss = per.sum()",
        "per = h.sin().flatten(1).mean(1); loss = per.mean()",
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h).reshape(-1, C), marked.reshape(-1), "
            "ignore_index=-100); per = None"
        ),
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h).transpose(1, 2), marked, "
            "ignore_index=-100); per = None"
        ),
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h).reshape(-1, C), marked.reshape(-1), "
            "reduction='sum'); per = None"
        ),
        (
            "loss = F.cross_entropy(<M nn.Linear(N, C)>(h)[:, :-1].reshape(-1, C), marked[:, "
            "1:].reshape(-1).clamp_min(0)); per = None"
        ),
        "loss = h.pow(2).mean(); per = None",
        "loss = h[keep].pow(2).sum(); per = None",
        "loss = h[keep].pow(2).mean(); per = None",
        "loss = (h * keep.unsqueeze(-1)).pow(2).sum(); per = None",
    ),
    "t": (
        "per = h.pow(2).sum((0, 2)); loss = per.sum()",
        "loss = h.sin().mean(); per = None",
        "per = h.sin().mean(0).sum(-1); loss = per.mean()",
    ),
    "r": (
        "per = h.pow(2).view(-1, T * N).sum(1); loss = per.sum()",
        "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), marked.view(-1)); per = None",
    ),
    "q": (
        "loss = h.pow(2).sum(); per = None",
        "loss = F.cross_entropy(<M nn.Linear(N, C)>(h), marked.t().reshape(-1)); per = None",
    ),
    "c": (
        "per = h.pow(2).sum((1, 2)); loss = per.sum()",
        "loss = F.cross_entropy(h, ids % N); per = None",
    ),
    "i": ("per = h.pow(2).sum((1, 2, 3)); loss = per.mean()",),
}
