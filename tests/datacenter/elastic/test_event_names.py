"""Events of a meeting have the names that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from atoll.datacenter.elastic.event_names import method_name, name_events_quickly

TORCHS: Callable[[], str] = dynamic_rendezvous.get_method_name


def record(find: Callable[[], str]) -> str:
    return find()


def meet(find: Callable[[], str]) -> str:
    return record(find)


def test_an_event_is_named_after_the_method_that_records_it() -> None:
    assert meet(method_name) == meet(TORCHS) == "meet"
    name_events_quickly()
    assert meet(dynamic_rendezvous.get_method_name) == "meet"
