"""Continual SFT: one sub-dataset after the other, each cut at its own peak."""

from msft.search.rollout import Run


def continual(run: Run) -> None:
    """In recipe order, each for at most C; the model after the last stop is the result.

    With `rehearsal_fraction` a sample of every earlier sub-dataset is mixed in (CT0 used 0.01;
    the paper's FLOPs have none).
    """
    theta = run.base
    done: tuple[str, ...] = ()
    for name in run.mixture.active:
        mixture = run.mixture.only(name, after=done)
        rollout = run.rollout(theta, mixture, run.compute_budget, eligible=False)
        stop = rollout.peaks()[name]
        theta, done = rollout.at(stop), (*done, name)
        run.exclude([name], theta, stop)
    run.report(theta)
