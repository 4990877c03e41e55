import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('datasets', '0001_initial'),
        ('runs', '0002_kill_sent_at'),
    ]

    operations = [
        migrations.AddField(
            model_name='dataset',
            name='run',
            field=models.ForeignKey(blank=True, help_text='whose curation it is; null: uploaded', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='runs.run'),
        ),
        migrations.AlterField(
            model_name='dataset',
            name='content_hash',
            field=models.CharField(help_text="SHA-256 of the uploaded file, or the curation's version", max_length=64),
        ),
        migrations.AddField(
            model_name='funnel',
            name='version',
            field=models.CharField(blank=True, default='', max_length=64),
        ),
    ]
