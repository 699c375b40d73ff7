"""The RPC shell: thin handlers between protobuf messages and the daemon.

Services: ``enrolment``, ``participation``, ``transfer`` and ``control`` (with its parts ``…_handlers``). Between the
processes of one server: ``coordinator_service`` and ``worker_service``. Each call passes ``interceptor`` and ``method``
(limits, errors). Its handler first asks ``authentication`` for the caller's role.
"""
