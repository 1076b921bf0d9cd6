"""The migrations, NNNN_name.sql, applied in order by tireless/store/migrate.py. Never edited once landed."""
