select * from job where id = %(id)s
