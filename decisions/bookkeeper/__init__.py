"""Decisions on a switch of brokers to another BookKeeper cluster (PIP-477).

From the bottom:

- `gates`, `account`     every reason for refusing a command or leaving a ledger, and the list that an evaluation makes
- `uris`                 which metadata service URIs cannot both be registered
- `seen`                 which records name which ledgers, and the resolver: on which cluster each is
- `ids`                  the precheck of ledger ids
- `work`, `cleanup`      what is to be done with each ledger of the source; which old copies may go
- `phases`, `registry`   in which phase a switch is; what clusters there are, and which is ACTIVE
- `switching`            what an operator asks for
- `invariants`           I1 to I17 over snapshots
- `decide`               the entry

docs/decisions/0032 says how each gap of the proposal is closed or refused; `hole N` in this package is its row N.
"""
