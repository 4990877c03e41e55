from django import forms


class ShareForm(forms.Form):
    note = forms.CharField(label="For whom", required=False, max_length=80)
    days = forms.TypedChoiceField(
        label="Valid for",
        choices=[("7", "7 days"), ("30", "30 days"), ("365", "a year"), ("0", "until it is revoked")],
        coerce=int,
        initial="30",
    )
