from django import forms
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import UploadedFile

MAX_UPLOAD_BYTES = 64 * 1000 * 1000


class UploadForm(forms.Form):
    file = forms.FileField(
        label="File", help_text="JSON lines or CSV, at most 64 MB", allow_empty_file=True, max_length=400
    )
    name = forms.CharField(label="Name", required=False, max_length=80, help_text="the file's name if left empty")

    def clean_file(self) -> UploadedFile:
        upload: UploadedFile = self.cleaned_data["file"]
        if not upload.size:
            raise ValidationError("The file is empty.")
        if upload.size > MAX_UPLOAD_BYTES:
            raise ValidationError(f"The file has {upload.size / 1e6:.0f} MB; at most 64 MB are taken. Split it.")
        return upload


class BenchmarkForm(forms.Form):
    name = forms.CharField(label="Benchmark name", max_length=80)
