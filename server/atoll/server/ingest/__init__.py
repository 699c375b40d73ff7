"""Receiving updates: chunks go to a spool on disk, an upload is committed durably, then folded into a partial sum.

An incomplete upload never reaches the sum. An upload is a folder of *segments*, one per stream, so that streams on
different connections, or in different worker processes, never share a file or a lock:

    spool/<run>/<round>.<attempt>/<participant>/<upload id>/<segment>.data   payloads, in order of arrival
                                                            <segment>.index  one record per payload, see ``records``
    spool/<run>/<round>.<attempt>/<participant>/<digest>.committed           the chosen records, written on commit

``spool`` manages all of these files. ``receiver`` writes one stream, ``commit`` makes an upload durable, ``node`` folds
committed uploads, and ``coordinator_api`` is the interface by which nodes identify callers, ask whether an upload is
wanted, and record reports. Updates are personal data: a round's folder is removed when the round is released.
"""
