# ruff: noqa: A005 — a folder of tests of types, not a module to import
