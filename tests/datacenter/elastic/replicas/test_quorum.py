"""The members of a step, and whether its mean counts: the coordinator as a pure function of events and time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from atoll.datacenter.elastic.replicas.messages import (
    NO_STATE,
    Arrive,
    AskStop,
    Begin,
    Behind,
    Decision,
    FromRank,
    Heal,
    Join,
    Leave,
    Over,
    Quorum,
    Speculate,
    ToRank,
    Vote,
)
from atoll.datacenter.elastic.replicas.quorum import GRACE_S, MAX_BEHIND, MAX_FAILURES, START_S, Quorums
from atoll.datacenter.elastic.replicas.standing import Action, End, Fail, Rules, Say, Send

TIMEOUT_S = 100.0


@dataclass
class Script:
    """Drives a coordinator; ``said`` and ``sent`` hold the results of the last event."""

    groups: int = 3
    ranks: int = 1
    steps: int = 100
    backup: int = 0
    least: int = 1
    after: float | None = None
    now_s: float = 0.0
    sent: dict[int, list[ToRank]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        rules = Rules(self.groups, self.ranks, self.steps, self.backup, self.least, TIMEOUT_S, self.after)
        self.quorums = Quorums(rules)

    def take(self, actions: list[Action]) -> Script:
        self.sent, self.said, self.ended = {}, [], []
        for action in actions:
            match action:
                case Send(group, message):
                    self.sent.setdefault(group, []).append(message)
                case Say(text):
                    self.said.append(text)
                case End(group):
                    self.ended.append(group)
                case Fail(reason):
                    self.failed.append(reason)
        return self

    def hear(self, group: int, message: FromRank, position: int = 0) -> Script:
        return self.take(self.quorums.heard(group, position, message, self.now_s))

    def lose(self, group: int) -> Script:
        return self.take(self.quorums.lost_group(group, self.now_s))

    def begin(self, step: int = 0) -> Script:
        """All groups start and join; group 0 has a state."""
        for group in range(self.groups):
            self.quorums.coming(group, 0.0)
        for group in range(self.groups):
            for position in range(self.ranks):
                self.hear(group, Join(NO_STATE if group else step), position)
        return self

    def arrive(self, *groups: int, step: int | None = None) -> Script:
        for group in groups:
            for position in range(self.ranks):
                at = self.quorums.step if step is None else step
                self.hear(group, Arrive(at, 10 * (group + 1), float(group)), position)
        return self

    def arrive_for(self, late: int, group: int, *, step: int | None = None) -> Script:
        """A group has the gradient of a late one's micro-batches."""
        for position in range(self.ranks):
            at = self.quorums.step if step is None else step
            self.hear(group, Arrive(at, 10 * (late + 1), float(late), share=late), position)
        return self

    def vote(self, *groups: int, good: bool = True) -> Script:
        for group in groups:
            for position in range(self.ranks):
                self.hear(group, Vote(self.quorum.attempt, good), position)
        return self

    @property
    def quorum(self) -> Quorum:
        attempt = self.quorums._attempt
        assert attempt is not None
        return attempt.quorum


def test_all_begin_together_with_the_state_of_the_group_that_has_one() -> None:
    """This holds even if that group is the last to join."""
    script = Script(groups=2)
    script.quorums.coming(0, 0.0)
    script.quorums.coming(1, 0.0)
    assert script.hear(1, Join(NO_STATE)).sent == {}
    begin = Begin(6, Heal(1, 0, (1,)), 0)
    assert script.hear(0, Join(6)).sent == {0: [begin], 1: [begin]}


def test_a_step_waits_for_all_and_counts_when_all_have_its_mean() -> None:
    """The loss is weighted by tokens."""
    script = Script().begin()
    assert script.arrive(2, 0).sent == {}
    sent = script.arrive(1).sent
    quorum = Quorum(1, 1, 0, (0, 1, 2), (0, 1, 2), 60, (0 * 10 + 1 * 20 + 2 * 30) / 60)
    assert sent == {0: [quorum], 1: [quorum], 2: [quorum]}
    assert script.vote(0, 1).sent == {}
    decision = Decision(1, commit=True)
    assert script.vote(2).sent == {0: [decision], 1: [decision], 2: [decision]}
    assert script.arrive(0, 1, 2).sent[0] == [
        Quorum(2, 1, 1, (0, 1, 2), (0, 1, 2), 60, quorum.loss)
    ]  # same connections


def test_a_group_lost_before_it_arrives_is_not_waited_for() -> None:
    script = Script().begin()
    script.arrive(0, 1)
    sent = script.lose(2).sent
    assert [type(one) for one in sent[0]] == [Quorum]
    assert script.quorum.contributors == (0, 1)
    assert script.vote(0, 1).sent[0] == [Decision(1, commit=True, lost=1)]


def test_a_mean_with_a_group_lost_before_the_commit_counts_for_no_group() -> None:
    """This holds even if that group and another one have voted; the survivors sum again over new connections."""
    script = Script().begin().arrive(0, 1, 2).vote(2, 0)
    assert script.lose(2).sent == {0: [Decision(1, commit=False)], 1: [Decision(1, commit=False)]}
    sent = script.vote(1, good=False).sent
    assert sent[0] == sent[1] == [Quorum(2, 2, 0, (0, 1), (0, 1), 30, 20 / 30)]
    assert script.vote(0, 1).sent[1] == [Decision(2, commit=True, lost=1)]
    assert script.quorums.step == 1


def test_a_sum_that_breaks_off_is_made_again_and_not_for_ever() -> None:
    """Every member votes before the next attempt, so that no vote is mistaken for one of it."""
    script = Script(groups=2).begin().arrive(0, 1)
    assert script.vote(0, good=False).sent == {0: [Decision(1, commit=False)], 1: [Decision(1, commit=False)]}
    assert [type(one) for one in script.vote(1).sent[0]] == [Quorum]
    for _ in range(MAX_FAILURES - 1):
        assert not script.failed
        script.vote(0, 1, good=False)
    assert script.failed == [f"the sum of step 1 over replica groups failed {MAX_FAILURES} times in a row"]


def test_a_group_comes_back_after_a_step_and_is_waited_for_in_the_next() -> None:
    script = Script().begin().arrive(0, 1)
    script.lose(2)
    script.quorums.coming(2, 0.0)
    assert script.hear(2, Join(NO_STATE)).said == [
        "replica group 2 is ready to come back: it joins after the present step"
    ]
    sent = script.vote(0, 1).sent
    heal = Heal(2, 0, (2,))
    assert sent == {
        0: [Decision(1, commit=True, heal=heal, lost=1)],
        1: [Decision(1, commit=True, heal=heal, lost=1)],
        2: [Begin(1, heal, 0)],
    }
    assert script.arrive(0, 1).sent == {}
    assert script.arrive(2).said == ["replica group 2 is back in step 2"]
    assert script.quorum.members == (0, 1, 2)
    assert script.vote(0, 1, 2).sent[1] == [Decision(2, commit=True, lost=1, healed=1)]


def test_a_group_whose_state_did_not_arrive_joins_again() -> None:
    script = Script().begin().arrive(0, 1)
    script.lose(2)
    script.quorums.coming(2, 0.0)
    script.hear(2, Join(NO_STATE))
    script.vote(0, 1)
    script.hear(2, Join(NO_STATE))
    assert script.arrive(0, 1).sent.keys() == {0, 1}
    assert script.vote(0, 1).sent[2] == [Begin(2, Heal(3, 0, (2,)), 0)]


def test_when_all_are_lost_they_go_on_together_from_the_state_that_one_has() -> None:
    """A group without a state waits for one that has read the checkpoint."""
    script = Script(groups=2).begin().arrive(0, 1).vote(0, 1)
    script.lose(0)
    script.quorums.coming(0, 0.0)
    script.hear(0, Join(NO_STATE))
    assert script.lose(1).sent == {}
    script.quorums.coming(1, 0.0)
    sent = script.hear(1, Join(0)).sent
    assert sent[0] == sent[1] == [Begin(0, Heal(2, 1, (0,)), 1)]
    assert script.said == ["all replica groups go on together from step 0"]


def test_groups_that_were_all_lost_connect_anew_although_they_are_the_same() -> None:
    """With the old epoch a group could find a lost neighbour's address in the store, and fail to connect."""
    script = Script(groups=2).begin().arrive(0, 1)
    epoch = script.quorum.epoch
    script.vote(0, 1)
    script.lose(0)
    script.lose(1)
    script.begin()
    script.arrive(0, 1)
    assert (script.quorum.members, script.quorum.epoch) == ((0, 1), epoch + 1)


def test_fewer_groups_than_the_least_wait_until_enough_are_ready_to_come_back() -> None:
    """They join after a step, so the waiting step is made without them."""
    script = Script(least=2).begin().arrive(0)
    script.lose(1)
    assert script.lose(2).sent == {}
    script.quorums.coming(1, 0.0)
    assert [type(one) for one in script.hear(1, Join(NO_STATE)).sent[0]] == [Quorum]
    assert script.quorum.contributors == (0,)
    assert script.vote(0).sent[1] == [Begin(1, Heal(2, 0, (1,)), 0)]


def test_every_rank_of_a_group_counts() -> None:
    """A group of two ranks arrives and votes when both have."""
    script = Script(groups=2, ranks=2).begin()
    script.arrive(0)
    assert script.hear(1, Arrive(0, 20, 1.0), 0).sent == {}
    assert script.hear(1, Arrive(0, 20, 1.0), 1).sent.keys() == {0, 1}
    script.vote(0)
    assert script.hear(1, Vote(1, good=True), 1).sent == {}
    assert script.hear(1, Vote(1, good=True), 0).sent.keys() == {0, 1}


def test_a_step_does_not_wait_for_backups_which_get_its_mean() -> None:
    """The mean is over the first two of three groups; the third is a member of the sum, but adds nothing to it."""
    script = Script(backup=1).begin()
    script.arrive(2, 0)
    assert (script.quorum.members, script.quorum.contributors) == ((0, 1, 2), (0, 2))
    assert script.vote(0, 1, 2).sent[1] == [Decision(1, commit=True)]
    script.arrive(1, step=0)  # late: it finds the mean
    assert script.arrive(1).sent == {}
    assert script.arrive(0).sent.keys() == {0, 1, 2}
    assert script.quorum.contributors == (0, 1)


def test_a_group_too_many_steps_behind_takes_no_further_part_until_it_has_a_whole_state() -> None:
    script = Script(backup=1).begin()
    for _ in range(MAX_BEHIND):
        script.arrive(0, 2).vote(0, 1, 2)
        assert script.said == []
    script.arrive(0, 2).vote(0, 1, 2)
    assert script.sent[1][-1] == Behind(MAX_BEHIND + 1)
    assert script.quorums.live == [0, 2]
    script.hear(1, Join(NO_STATE))
    assert script.arrive(0).sent == {}  # three groups with one backup: both others are waited for
    script.arrive(2)
    assert script.vote(0, 2).sent[1] == [Begin(MAX_BEHIND + 2, Heal(2, 0, (1,)), 0)]


def test_a_group_that_moves_is_not_too_far_behind() -> None:
    """It finds the mean of each step that it arrives at late."""
    script = Script(backup=1).begin()
    for step in range(3 * MAX_BEHIND):
        script.arrive(0, 2).vote(0, 1, 2)
        script.arrive(1, step=step)
    assert script.quorums.live == [0, 1, 2]


def test_groups_that_do_not_answer_are_ended() -> None:
    """This holds for one that does not arrive while others wait, and for one that is in a sum and does not vote."""
    script = Script(groups=2).begin()
    assert script.quorums.deadline_s() is None
    script.arrive(0)
    assert script.quorums.deadline_s() == TIMEOUT_S
    assert script.take(script.quorums.tick(TIMEOUT_S)).ended == [1]
    assert script.quorums.deadline_s() is None
    script.lose(1)
    script.vote(0)
    other = Script(groups=2).begin().arrive(0, 1)
    other.vote(0, good=False)
    assert other.quorums.deadline_s() == GRACE_S
    assert other.take(other.quorums.tick(GRACE_S)).ended == [1]
    assert [type(one) for one in other.lose(1).sent[0]] == [Quorum]


def test_a_stop_comes_with_a_mean_and_groups_on_their_way_are_not_needed() -> None:
    script = Script().begin().arrive(0, 1)
    script.lose(2)
    script.quorums.coming(2, 0.0)
    script.hear(2, Join(NO_STATE))
    script.hear(1, AskStop())
    sent = script.vote(0, 1).sent
    assert sent == {
        0: [Decision(1, commit=True, stop=True, lost=1)],
        1: [Decision(1, commit=True, stop=True, lost=1)],
        2: [Over()],
    }
    script.hear(0, Leave())
    assert script.lose(0).said == []  # its processes end
    assert script.quorums.lost == 1


def test_the_leader_changes_only_when_it_is_lost() -> None:
    """A late leader has the mean of every step, and writes later. A leader that comes back does not lead again."""
    script = Script(backup=1).begin()
    assert script.arrive(1, 2).vote(0, 1, 2).sent[1] == [Decision(1, commit=True, leader=0)]
    script.lose(0)
    assert script.arrive(1, 2).vote(1, 2).sent[1] == [Decision(2, commit=True, leader=1, lost=1)]
    script.quorums.coming(0, 0.0)
    script.hear(0, Join(NO_STATE))
    assert script.arrive(1, 2).vote(1, 2).sent[0] == [Begin(3, Heal(2, 1, (0,)), 1)]


def test_when_the_only_state_is_lost_while_it_is_sent_all_that_wait_are_stranded() -> None:
    """Each of them waits for a live group, and there is none: the launcher has one of them read the checkpoint."""
    script = Script(groups=2).begin()
    script.lose(0)  # group 1 has a part of its state
    script.quorums.coming(0, 0.0)
    script.hear(1, Join(NO_STATE))
    assert not script.quorums.is_stranded([0, 1])  # the other one may bring a state
    assert script.hear(0, Join(NO_STATE)).sent == {}
    assert script.quorums.is_stranded([0, 1])
    script.lose(0)
    assert not script.quorums.is_stranded([0, 1])
    script.quorums.coming(0, 0.0)
    assert script.hear(0, Join(6)).sent == {0: [Begin(6, Heal(2, 0, (1,)), 0)], 1: [Begin(6, Heal(2, 0, (1,)), 0)]}


def test_a_live_group_that_a_returning_one_waits_for_in_vain_is_ended() -> None:
    """It may be the only one that has not arrived: then no other group's arrival shows that it hangs."""
    script = Script(groups=2).begin().arrive(0, 1).vote(0, 1)
    script.lose(1)
    script.quorums.coming(1, 0.0)
    script.now_s = 7.0
    script.hear(1, Join(NO_STATE))
    assert script.quorums.deadline_s() == 7.0 + TIMEOUT_S
    assert script.take(script.quorums.tick(7.0 + TIMEOUT_S)).ended == [0]


def test_a_started_group_that_is_never_ready_is_ended() -> None:
    """This holds at the start, after a restart, and for a group that is too far behind."""
    script = Script(groups=2)
    script.quorums.coming(0, 0.0)
    script.quorums.coming(1, 5.0)
    script.hear(0, Join(0))
    assert script.quorums.deadline_s() == 5.0 + START_S
    assert script.take(script.quorums.tick(5.0 + START_S)).ended == [1]
    assert script.take(script.quorums.tick(6.0 + START_S)).ended == []
    late = Script(backup=1).begin()
    for _ in range(MAX_BEHIND + 1):
        late.arrive(0, 2).vote(0, 1, 2)
    assert late.quorums.live == [0, 2]
    late.take(late.quorums.tick(START_S))
    assert late.ended == [1]


def test_a_leader_that_is_left_behind_leads_no_more() -> None:
    """Otherwise no group would write the checkpoint of that step, not even of the last one."""
    script = Script(backup=1, steps=MAX_BEHIND + 1).begin()
    for _ in range(MAX_BEHIND):
        script.arrive(1, 2).vote(0, 1, 2)
    assert script.quorums.ending_leader is None
    decision = script.arrive(1, 2).vote(0, 1, 2).sent[1][0]
    assert decision == Decision(MAX_BEHIND + 1, commit=True, stop=True, leader=1)
    assert script.quorums.ending_leader == 1


def test_a_stop_that_was_asked_for_has_no_last_leader_before_its_step() -> None:
    """A group lost before then is replaced by another one, even if it leads and others that came too late have left."""
    script = Script(groups=3).begin().arrive(0)
    script.lose(2)
    script.quorums.coming(2, 0.0)
    script.hear(1, AskStop())
    script.hear(2, Join(NO_STATE))
    script.hear(2, Leave())
    assert script.quorums.ending_leader is None
    script.arrive(1).vote(0, 1)
    assert script.quorums.ending_leader == 0


def test_a_late_groups_micro_batches_are_given_to_the_fastest_group() -> None:
    """It is late after 1.5 times what half of the groups took; every number is the same as without a late group."""
    script = Script(groups=3, ranks=2, after=1.5).begin()
    script.now_s = 4.0
    assert script.arrive(2).quorums.deadline_s() == TIMEOUT_S + 4.0
    script.now_s = 10.0
    script.arrive(0)
    assert script.quorums.deadline_s() == 15.0
    assert script.take(script.quorums.tick(14.0)).sent == {}
    assert script.take(script.quorums.tick(15.0)).sent == {2: [Speculate(0, 1)]}
    assert script.quorums.deadline_s() == TIMEOUT_S + 4.0
    script.hear(2, Arrive(0, 20, 1.0, share=1), 0)
    assert script.sent == {}
    script.hear(2, Arrive(0, 20, 1.0, share=1), 1)
    plain = Script(groups=3).begin().arrive(0, 1, 2).quorum
    assert script.quorum == replace(plain, held=((1, 2),))
    assert script.sent == {group: [script.quorum] for group in range(3)}
    assert script.vote(0, 1, 2).quorums.step == 1


def test_a_late_group_that_is_first_after_all_adds_its_own_gradient() -> None:
    """This holds even if the other group's comes before the sum begins; later messages are ignored."""
    script = Script(groups=2, after=1).begin().arrive(0)
    assert script.sent == {0: [Speculate(0, 1)]}
    assert script.arrive(1).quorum.held == ()
    script.arrive_for(1, 0)
    assert script.vote(0, 1).quorums.step == 1
    script.arrive_for(1, 0, step=0)
    assert script.arrive(1).sent == {1: [Speculate(1, 0)]}
    three = Script(groups=4, after=1).begin().arrive(0, 1).arrive_for(2, 0).arrive(2).arrive(3)
    assert three.quorum.held == ()


def test_only_what_was_asked_for_counts() -> None:
    script = Script(groups=3, after=1).begin()
    script.arrive(0).arrive_for(2, 0)
    assert script.arrive(1).sent == {0: [Speculate(0, 2)]}
    assert script.arrive_for(2, 1).sent == {}
    assert script.arrive_for(2, 0).quorum.held == ((2, 0),)


def test_without_the_setting_a_step_waits() -> None:
    script = Script(groups=2).begin().arrive(0)
    script.now_s = TIMEOUT_S / 2
    assert script.take(script.quorums.tick(script.now_s)).sent == {}


def test_a_group_that_was_late_is_expected_to_be_late_until_it_is_not() -> None:
    """Then the pace of half of the groups decides again."""
    script = Script(groups=3, after=2).begin()
    script.now_s = 10.0
    script.arrive(0, 2)
    script.take(script.quorums.tick(20.0))
    script.arrive_for(1, 0).vote(0, 1, 2)
    assert script.arrive(2).sent == {2: [Speculate(1, 1)]}
    script.arrive(1, step=0)  # its own pass of the step before has ended
    script.arrive(1)
    assert script.arrive(0).quorum.held == ()
    script.vote(0, 1, 2)
    assert script.arrive(2).sent == {}


def test_a_group_lost_while_it_ran_a_late_ones_micro_batches_is_replaced_by_the_next() -> None:
    """If the late group is lost, the step is made without it."""
    script = Script(groups=3, after=1).begin().arrive(0, 1)
    assert script.lose(0).sent == {1: [Speculate(0, 2)]}
    assert script.arrive_for(2, 1).quorum.held == ((2, 1),)
    other = Script(groups=3, after=1).begin().arrive(0, 1)
    other.lose(2)
    assert (other.quorum.members, other.quorum.held) == ((0, 1), ())
    assert other.arrive_for(2, 0).vote(0, 1).quorums.step == 1


def test_the_sum_of_a_lost_holder_is_made_again_once_another_has_run_them() -> None:
    script = Script(groups=3, after=1).begin().arrive(0, 1).arrive_for(2, 0)
    assert script.lose(0).sent == {1: [Decision(1, commit=False)], 2: [Decision(1, commit=False)]}
    assert script.vote(1, 2, good=False).sent == {1: [Speculate(0, 2)]}
    assert script.arrive_for(2, 1).quorum.held == ((2, 1),)
    assert script.vote(1, 2).quorums.step == 1


def test_a_late_contributor_sends_no_state_and_is_left_behind_like_any_other() -> None:
    script = Script(groups=3, after=1).begin()
    script.lose(2)
    script.quorums.coming(2, 0.0)
    script.arrive(1)
    script.hear(2, Join(NO_STATE))
    assert script.arrive_for(0, 1).quorum.contributors == (0, 1)
    assert script.vote(0, 1).sent[2] == [Begin(1, Heal(2, 1, (2,)), 0)]
    for _ in range(MAX_BEHIND):
        script.arrive(1, 2)
        script.arrive_for(0, 1).vote(0, 1, 2)
    assert script.sent[0][-1] == Behind(MAX_BEHIND + 1)
    assert script.quorums.live == [1, 2]
