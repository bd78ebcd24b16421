"""Whether the lake is whole: gaps, duplicates, orphans, missing files, and what to do about each (docs/cluster.md).

Each module may import only those below it:

- `checking`  the whole check of a lake, table after table
- `rows`      what the tables' rows must say of each other, asked in SQL
- `agreement` rules that need more than one table, as questions
- `stored`    whether the files that the tables' logs name are there
- `contents`  whether their bytes are what they were
- `layouts`   whether the layouts that holds name by digest are on record
- `numbers`   the rule for the numbers of a subject's decisions and holds; pure
- `findings`  what was found, bounded in number
"""
