"""How updates come in: chunks into a spool on disk, a durable commit, and folding into a partial sum.

Half an upload never touches the sum. An upload is a folder of *segments*, one per stream that fed it, so that streams
on different connections, or in different worker processes, never share a file or a lock:

    spool/<run>/<round>.<attempt>/<participant>/<upload id>/<segment>.data   payloads, in order of arrival
                                                            <segment>.index  one record per payload, see ``records``
    spool/<run>/<round>.<attempt>/<participant>/<digest>.committed           the chosen records, written on commit

``spool`` knows all of these files. ``receiver`` writes one stream, ``commit`` makes an upload whole and durable,
``node`` folds committed uploads, and ``desk`` is what the coordinator answers to an ingest node: who a caller is,
whether an upload is wanted, and the durable record of a report. Updates are people's: the folder of a round is removed
when the round is released.
"""
