"""The cards that a cost is given for, and how much of them is used."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.4  # of a card's peak: what well-kept training code of this size reaches; nothing here was measured on a card


@dataclass(frozen=True)
class Card:
    """A graphics card: its peaks in operations a second, dense, and its memory in bytes."""

    name: str
    bf16: float
    tf32: float
    fp32: float
    memory: float

    def peak(self, precision: str) -> float:
        """Operations a second in bf16 or fp16 (the same), tf32, or fp32."""
        return float(getattr(self, "bf16" if precision == "fp16" else precision))


# NVIDIA's data sheets: "A100 80GB", "H100 SXM" and "H200 SXM". Those of the last two print figures with sparsity, which
# are twice these.
CARDS = {
    "A100": Card("A100", bf16=312e12, tf32=156e12, fp32=19.5e12, memory=80e9),
    "H100": Card("H100", bf16=989e12, tf32=494.5e12, fp32=67e12, memory=80e9),
    "H200": Card("H200", bf16=989e12, tf32=494.5e12, fp32=67e12, memory=141e9),
}

# What PyTorch and CUDA take beside tensors: the context, NCCL's and cuBLAS's buffers; and what the allocator loses
# between blocks. Rules of thumb, on the safe side.
_BESIDE, _LOST = 2e9, 0.1


def needed(tensors: float) -> float:
    """Bytes of a card's memory for so many bytes of tensors."""
    return tensors * (1 + _LOST) + _BESIDE


def hours(operations: float, card: str | Card, precision: str = "bf16", share: float = SHARE) -> float:
    """Hours of one card, by its name or as it is, for so many operations, at ``share`` of its peak."""
    known = CARDS[card] if isinstance(card, str) else card
    return operations / (known.peak(precision) * share) / 3600
