"""Resume simulations that were killed.

A simulation with a folder keeps its database there and commits once a round: when the next round has been opened. The
commit (``boundaries``) has everything that the server stores, with the draw of the round, and everything else on which
the simulation depends: the virtual second, the connected participants, and when the others return. So a folder always
has the state of an instant at which nothing was computed for the round yet. A later call resumes the run from there as
a restarted server does (``Coordinator.start``), at that second, and recomputes the round's tasks. Participants start
with the files that they had at that instant (``participant_folders``). If late reports are carried, tasks of earlier
rounds are running and updates are waiting at that instant; the commit lists them (``tasks_in_work``).

::

    results_folder        locking and checking the folder
    asked                 the request, for comparison with a later one
    kept_state            the content of a commit besides the server's tables
    boundaries            when and what to commit
    round_writer          a database that commits only then
    participant_folders   participants' own files
    tasks_in_work         tasks and updates that outlive their round
"""
