"""Methods without torch: on scripted curves, and over a simulated engine.

This is shipped so that users can test methods of their own in milliseconds:

    from msft.testing import scripted
    out = scripted(my_method, datasets=["a", "b"], answer=answer)
    assert out.excluded == [("a", 3)]
"""

from msft.testing.promise import promised_log, promised_summary
from msft.testing.scripted import Scripted, scripted
from msft.testing.simulated import JsonCodec, Learner, SimulatedEngine, simulate

__all__ = [
    "JsonCodec",
    "Learner",
    "Scripted",
    "SimulatedEngine",
    "promised_log",
    "promised_summary",
    "scripted",
    "simulate",
]
