"""The probability that a participant reports in time, estimated from its past."""

from atoll.server.sampling.draw_request import HOURS, History

HOUR_S = 3600.0
LEAST_CHANCE = 0.05  # slow participants are still drawn now and then: they may have become faster


def chance_to_report(known: History, at: float, window_s: float) -> float:
    """Estimated probability of a report by `at + window_s`, in [0.05, 1].

    The product of three shares: online time in the window's hours, past reports that took no longer than the window,
    and past draws that ended with a report. Each share is optimistic without data, so that newcomers are drawn.
    """
    chance = online_share(known, at, window_s) * in_time_share(known, window_s) * reporting_share(known)
    return max(LEAST_CHANCE, chance)


def online_share(known: History, at: float, window_s: float) -> float:
    """Online time in the hours that the window touches, against the participant's best hour; 1 when never seen."""
    best = max(known.online_s)
    if best <= 0:
        return 1.0
    first = int(at // HOUR_S)
    last = int((at + min(window_s, (HOURS - 1) * HOUR_S)) // HOUR_S)
    hours = [known.online_s[hour % HOURS] for hour in range(first, last + 1)]
    return sum(hours) / (len(hours) * best)


def in_time_share(known: History, window_s: float) -> float:
    """Share of past reports that took no longer than the window; one such report is added as a prior."""
    in_time = sum(seconds <= window_s for seconds in known.report_s)
    return (in_time + 1) / (len(known.report_s) + 1)


def reporting_share(known: History) -> float:
    """Share of past draws that ended with a report; one such draw is added as a prior."""
    return (min(known.times_reported, known.times_selected) + 1) / (known.times_selected + 1)
