"""Check of the lake for gaps, duplicates, orphans, missing files; remedies: docs/operations.md.

Each module may import only those below it:

- `checking`  the whole check of a lake, table by table
- `rows`      consistency of the tables' rows, asked in SQL
- `agreement` rules that need more than one table, as questions
- `contents`  existence of the files that the tables' logs name, and their unchanged bytes
- `layouts`   presence of the layouts that holds name by digest
- `numbers`   the rule for the numbers of a subject's decisions and holds; pure
- `findings`  the findings, bounded in number
"""
