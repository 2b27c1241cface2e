"""Want of memory: how it is told from other errors, and what to do about it."""

CURE = (
    "memory ran out; set micro_batch_tokens lower or gradient_checkpointing: true, or give it more "
    "memory. What is done is safe: the same command goes on"
)
_SIGNS = ("can't allocate memory", "out of memory", "not enough memory", "bad allocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: on a device, or on the CPU, where torch has no class for it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
