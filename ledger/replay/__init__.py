"""Every decision and hold on record, taken again: by this release, on what was seen then.

- `again`   what this release says at each evaluation on record
- `report`  how that stands to what is on record
"""
