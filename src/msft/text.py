"""Amounts as people say them."""


def counted(amount: float, noun: str) -> str:
    """1 row, 1,234 rows, 0.5 epochs"""
    text = f"{amount:,}" if isinstance(amount, int) else f"{amount:,g}"
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"
