"""Simulations that go on after they were killed.

A simulation with a folder keeps its database there and commits once a round: when the next round has been opened. The
commit (``boundaries``) has all that the server stores, with the draw of the round, and what else the rest of the
simulation depends on: the virtual second, who is connected, who will come back when. So a folder is always in the state
of an instant at which nothing was computed yet for the round. A later call resumes the run from there as a restarted
server does (``Coordinator.start``), at that second, and computes the round's tasks again. Participants begin with the
files that they had at that instant (``participant_folders``). Where late reports are carried, tasks of earlier rounds
are in work at such an instant, and updates wait: the commit names them (``tasks_in_work``).

::

    results_folder        who may use a folder, and what it holds
    asked                 what was asked for, to be asked for again
    kept_state            what a commit holds besides the server's tables
    boundaries            when and what to commit
    round_writer          a database that commits only then
    participant_folders   participants' own files
    tasks_in_work         tasks and updates that outlive their round
"""
