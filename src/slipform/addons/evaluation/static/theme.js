// Light or dark: as the system has it, or as the button #theme was last pressed. A page opened from a disk may have no storage.
function remembered(value) {
  try {
    if (value) localStorage.setItem('theme', value);
    return localStorage.getItem('theme');
  } catch { return value; }
}

function theme(value) {
  document.documentElement.dataset.theme = value || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
}

theme(remembered());
document.getElementById('theme').addEventListener('click', () => {
  const other = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  remembered(other);
  theme(other);
});
